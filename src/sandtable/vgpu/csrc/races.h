// Races: kernels on different streams that touch the same memory in no order.
//
// Each stream has a vector clock: how many kernels of every stream are known to be over when its next one begins.
// Events, waits for collectives and waits of the host move the clocks on. A block of memory keeps who touched it last;
// an access whose clock does not cover an earlier one, of which at least one writes, is a race, whatever the card's
// timing is today. So is memory that is handed out again while a stream may still use what lay there before.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "recorder.h"

namespace sandtable {

struct Block;

struct Access {
  uint16_t stream = 0; // by number of appearance
  uint32_t tick = 0;
  uint32_t line = 0;
  uint32_t name = 0;
  bool is_write = false;
  bool is_call = false; // a collective's: it keeps the memory until it is over
  int64_t begin = 0, end = 0; // bytes of the storage
};

struct Race {
  enum class Kind : uint8_t { kReadAfterWrite, kWriteAfterRead, kWriteAfterWrite, kReused, kHostRead, kHostWrite } kind;
  std::string earlier, later;
  uint32_t earlier_line, later_line;
  uint16_t earlier_stream, later_stream;
  bool is_earlier_call, is_later_call;
};

void follow_races(bool on);
bool follows_races();
const std::vector<Race>& races();

// What moves the clocks: rows of the tape as they are added.
void order(Kind kind, uint32_t ref, uint16_t stream, int64_t value);
// A kernel of this name begins on a stream; then what it reads and writes.
void begin_kernel(const std::string& name, uint16_t stream, uint32_t line, bool is_call = false);
void touch(const at::Tensor& tensor, bool is_write);
// The call in this row of the table has been issued on the stream.
void end_call(uint32_t row, uint16_t stream);
// The host has learned that something is over without waiting for it.
void host_saw_event(uint32_t event);
void host_saw_stream(uint16_t stream);
void host_saw_call(uint32_t row);
// Of copies that the host does not wait for: the kernel that this thread has begun, whether the host has waited for it
// since, and that it did not before it touched the same memory.
Access kernel_under_way();
bool host_waited_for(const Access& access);
void report_host_race(bool is_write, const Access& access, const std::string& by, uint32_t line);
// The allocator takes a block back, or hands one out.
void freed(Block& block);
void handed_out(Block& block);

} // namespace sandtable
