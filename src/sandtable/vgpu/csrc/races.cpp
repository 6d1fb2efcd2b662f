#include "races.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <tuple>
#include <unordered_map>

#include "host_races.h"
#include "values.h"

namespace sandtable {
namespace {

constexpr size_t kMostRaces = 64;
constexpr size_t kMostAccesses = 4096; // of one block
constexpr size_t kMostLeft = 1024;

using Clock = std::vector<uint32_t>;

struct Stream {
  uint16_t id;
  uint32_t tick = 0;
  uint32_t host_version = 0;
  Clock clock;
};

// Memory that was given back while a stream might still use it.
struct Left {
  int device;
  uintptr_t begin, end;
  Access access;
};

bool detects_races = false;
std::mutex races_mutex;
std::vector<Stream> stream_clocks;
std::unordered_map<uint16_t, uint16_t> number_of_stream;
std::unordered_map<uint32_t, Clock> event_clocks;
std::unordered_map<uint32_t, Clock> call_clocks;
Clock host_clock;
uint32_t host_version = 0;
std::vector<std::string> kernel_names;
std::unordered_map<std::string, uint32_t> name_numbers;
std::vector<Left> left_behind;
std::vector<Race> found_races;
std::set<std::tuple<uint8_t, uint32_t, uint32_t>> known_races;
thread_local Access kernel_now;

void raise_to(Clock& clock, const Clock& other) {
  if (clock.size() < other.size())
    clock.resize(other.size(), 0);
  for (size_t i = 0; i < other.size(); ++i)
    clock[i] = std::max(clock[i], other[i]);
}

// The stream, with what the host has waited for.
Stream& stream_of(uint16_t id) {
  auto [entry, is_new] = number_of_stream.emplace(id, static_cast<uint16_t>(stream_clocks.size()));
  if (is_new) {
    stream_clocks.push_back({id});
    stream_clocks.back().clock.resize(stream_clocks.size(), 0);
  }
  Stream& stream = stream_clocks[entry->second];
  if (stream.host_version != host_version) {
    raise_to(stream.clock, host_clock);
    stream.host_version = host_version;
  }
  return stream;
}

bool covers(const Clock& clock, const Access& access) {
  return access.stream < clock.size() && clock[access.stream] >= access.tick;
}

void report(Race::Kind kind, const Access& earlier, const Access& later) {
  if (found_races.size() >= kMostRaces || !known_races.emplace(static_cast<uint8_t>(kind), earlier.line, later.line).second)
    return;
  found_races.push_back(
      {kind, kernel_names[earlier.name], kernel_names[later.name], earlier.line, later.line, stream_clocks[earlier.stream].id,
       stream_clocks[later.stream].id, earlier.is_call, later.is_call});
}

uint32_t number_of_name(const std::string& name) {
  auto [entry, is_new] = name_numbers.emplace(name, static_cast<uint32_t>(kernel_names.size()));
  if (is_new)
    kernel_names.push_back(name);
  return entry->second;
}

// Bytes of the storage between the first and the last element; nothing if other elements may lie between them.
bool extent_of(const at::Tensor& tensor, int64_t& begin, int64_t& end) {
  if (!tensor.is_non_overlapping_and_dense())
    return false;
  begin = tensor.storage_offset() * static_cast<int64_t>(tensor.element_size());
  end = begin + tensor.numel() * static_cast<int64_t>(tensor.element_size());
  return true;
}

} // namespace

void follow_races(bool on) {
  detects_races = on;
}

bool follows_races() {
  return detects_races;
}

const std::vector<Race>& races() {
  return found_races;
}

void order(Kind kind, uint32_t ref, uint16_t id, int64_t value) {
  if (!detects_races)
    return;
  std::unique_lock<std::mutex> lock(races_mutex);
  switch (kind) {
    case Kind::kEventRecord:
      event_clocks[ref] = stream_of(id).clock;
      break;
    case Kind::kEventWait:
      if (auto entry = event_clocks.find(ref); entry != event_clocks.end())
        raise_to(stream_of(id).clock, entry->second);
      break;
    case Kind::kWait:
      if (auto entry = call_clocks.find(ref); entry != call_clocks.end())
        raise_to(stream_of(id).clock, entry->second);
      break;
    case Kind::kHostSync:
      if (value == static_cast<int64_t>(Sync::kEvent)) {
        if (auto entry = event_clocks.find(ref); entry != event_clocks.end())
          raise_to(host_clock, entry->second);
      } else if (value == static_cast<int64_t>(Sync::kDevice)) {
        for (const Stream& stream : stream_clocks)
          raise_to(host_clock, stream.clock);
      } else {
        raise_to(host_clock, stream_of(id).clock);
      }
      ++host_version;
      lock.unlock();
      settle_copies();
      break;
    default:
      break;
  }
}

void begin_kernel(const std::string& name, uint16_t id, uint32_t line, bool is_call) {
  if (!detects_races)
    return;
  std::lock_guard<std::mutex> lock(races_mutex);
  Stream& stream = stream_of(id);
  uint16_t number = number_of_stream[id];
  kernel_now = {number, ++stream.tick, line, number_of_name(name), false, is_call, 0, 0};
  if (stream.clock.size() <= number)
    stream.clock.resize(number + 1, 0);
  stream.clock[number] = stream.tick;
}

void touch(const at::Tensor& tensor, bool is_write) {
  Block* block = detects_races && tensor.defined() && tensor.is_cuda() ? block_of(tensor) : nullptr;
  Access now = kernel_now;
  now.is_write = is_write;
  if (block == nullptr || !extent_of(tensor, now.begin, now.end))
    return;
  std::lock_guard<std::mutex> lock(races_mutex);
  if (now.stream >= stream_clocks.size())
    return;
  const Clock& clock = stream_clocks[now.stream].clock;
  std::vector<Access>& accesses = block->accesses;
  size_t kept = 0;
  bool is_known = false;
  for (size_t i = 0; i < accesses.size(); ++i) {
    Access& before = accesses[i];
    bool overlaps = before.begin < now.end && now.begin < before.end;
    bool is_covered = now.begin <= before.begin && before.end <= now.end;
    bool is_ordered = before.stream == now.stream || covers(clock, before);
    if (overlaps && !is_ordered && (before.is_write || is_write))
      report(
          !is_write           ? Race::Kind::kReadAfterWrite
              : before.is_write ? Race::Kind::kWriteAfterWrite
                                : Race::Kind::kWriteAfterRead,
          before, now);
    bool is_same = before.stream == now.stream && before.is_write == is_write && before.begin == now.begin &&
        before.end == now.end;
    if (is_same) {
      before = now;
      is_known = true;
    } else if (is_write && is_covered && (is_ordered || accesses.size() > kMostAccesses)) {
      continue; // whoever is ordered behind this write is ordered behind that access
    }
    if (kept != i)
      accesses[kept] = accesses[i];
    ++kept;
  }
  accesses.resize(kept);
  if (!is_known && accesses.size() <= kMostAccesses)
    accesses.push_back(now);
}

void end_call(uint32_t row, uint16_t id) {
  if (!detects_races)
    return;
  std::lock_guard<std::mutex> lock(races_mutex);
  call_clocks[row] = stream_of(id).clock;
}

void host_saw_event(uint32_t event) {
  order(Kind::kHostSync, event, 0, static_cast<int64_t>(Sync::kEvent));
}

void host_saw_stream(uint16_t stream) {
  order(Kind::kHostSync, 0, stream, static_cast<int64_t>(Sync::kStream));
}

void host_saw_call(uint32_t row) {
  std::lock_guard<std::mutex> lock(races_mutex);
  if (auto entry = call_clocks.find(row); entry != call_clocks.end()) {
    raise_to(host_clock, entry->second);
    ++host_version;
  }
}

Access kernel_under_way() {
  return kernel_now;
}

bool host_waited_for(const Access& access) {
  std::lock_guard<std::mutex> lock(races_mutex);
  return covers(host_clock, access);
}

void report_host_race(bool is_write, const Access& access, const std::string& by, uint32_t line) {
  std::lock_guard<std::mutex> lock(races_mutex);
  Access later{access.stream, 0, line, number_of_name(by)};
  report(is_write ? Race::Kind::kHostWrite : Race::Kind::kHostRead, access, later);
}

void freed(Block& block) {
  if (!detects_races || block.accesses.empty())
    return;
  std::lock_guard<std::mutex> lock(races_mutex);
  auto own = number_of_stream.find(static_cast<uint16_t>(block.stream));
  for (const Access& access : block.accesses) {
    uint16_t id = stream_clocks[access.stream].id;
    bool is_own = own != number_of_stream.end() && access.stream == own->second;
    bool is_ordered = is_own || (own != number_of_stream.end() && covers(stream_of(static_cast<uint16_t>(block.stream)).clock, access));
    if (!is_ordered && !access.is_call && !block.other_streams.contains(id) && left_behind.size() < kMostLeft)
      left_behind.push_back({block.device, block.address, block.address + block.size, access});
  }
  block.accesses.clear();
}

void handed_out(Block& block) {
  block.accesses.clear();
  if (!detects_races || left_behind.empty())
    return;
  std::lock_guard<std::mutex> lock(races_mutex);
  uint16_t id = static_cast<uint16_t>(block.stream);
  const Clock clock = stream_of(id).clock;
  std::erase_if(left_behind, [&](const Left& part) {
    if (part.device != block.device || part.end <= block.address || block.address + block.size <= part.begin)
      return false;
    if (!covers(clock, part.access)) {
      Access now{number_of_stream[id], 0, block.line, number_of_name("memory is handed out again")};
      report(Race::Kind::kReused, part.access, now);
    }
    return true;
  });
}

} // namespace sandtable
