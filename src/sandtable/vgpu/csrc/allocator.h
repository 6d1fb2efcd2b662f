// The caching allocator of a card that is not there.
//
// It follows PyTorch's CUDA caching allocator: sizes rounded to 512 bytes; requests up to 1 MiB come from 2 MiB
// segments, up to 10 MiB from 20 MiB segments, larger ones from segments rounded to 2 MiB; best fit within a stream's
// pool; blocks split and merged; cached segments given back before it says that memory is out. Addresses are real
// numbers in a reserved range with no memory behind them. With expandable_segments:True in PYTORCH_ALLOC_CONF a stream
// has one segment a pool, which grows by 2 MiB (small) or 20 MiB (large) at a time.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Stream.h>

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "digest.h"
#include "facts.h"
#include "gradient_scale.h"
#include "races.h"

namespace sandtable {

struct Pool;

// Of values: as on the card; finite stand-ins for what only the card would know; what follows from the job's routing.
// Operators on values of different certainty give the greatest.
enum class Certainty : uint8_t { kExact, kStandIn, kRouted };

// The value of a small tensor, kept on the host beside its virtual storage.
struct Shadow {
  std::unique_ptr<char[]> bytes;
  Certainty certainty = Certainty::kExact;
};

struct Block {
  int device = 0;
  int64_t stream = 0;
  uintptr_t address = 0;
  size_t size = 0;
  size_t requested = 0;
  bool allocated = false;
  bool is_of_compiler = false; // in no pool
  Pool* pool = nullptr;
  Block* previous = nullptr; // neighbours in the same segment
  Block* next = nullptr;
  uint32_t id = 0;
  uint32_t line = 0;
  std::unordered_set<int64_t> other_streams;
  Shadow shadow;
  bool is_parameter = false; // a backward pass has reached it (updates.h)
  uint32_t written_line = 0; // of the last kernel that wrote to it
  Identity identity; // of what it holds
  uint32_t gather = 0; // whose gathered activations it holds, if gradients do not pass (gathers.h)
  GradientScale scale;
  Contents contents; // parts that were written on their own, if any
  std::vector<Access> accesses; // the last of each kind, stream and part (races.h)
  std::unique_ptr<Facts> facts; // of all elements of the storage; null: no more than is presumed
};

struct ByFit {
  bool operator()(const Block* a, const Block* b) const {
    return std::tie(a->stream, a->size, a->address) < std::tie(b->stream, b->size, b->address);
  }
};

struct Pool {
  bool is_small;
  std::set<Block*, ByFit> free_blocks;
  std::map<int64_t, Block*> last; // expandable segments: a stream's segment grows behind its last block
};

// Memory that only some of the script's tensors may use: those of a CUDA graph, or of `torch.cuda.MemPool`. What they
// free stays in it while it has users.
struct PrivatePool {
  Pool small{true, {}, {}};
  Pool large{false, {}, {}};
  int num_users = 0;
};

// The most a card ever held, whatever the script resets.
struct Peaks {
  int64_t allocated = 0;
  int64_t reserved = 0;
  int64_t num_ooms = 0;
};

// What a line of the script has taken of a card, whether or not it gave it back.
struct LineUse {
  int64_t num_bytes = 0;
  int64_t num_tensors = 0;
};

struct Card {
  size_t capacity = 0;
  size_t context = 0; // what the driver and the libraries take before the first tensor
  double fraction = 1.0;
  uintptr_t next_address = 0;
  Pool small{true, {}};
  Pool large{false, {}};
  std::map<c10::MempoolId_t, PrivatePool> private_pools;
  std::vector<c10::MempoolId_t> pools_now; // which tensors are made in: the last one
  std::map<uintptr_t, Block*> live; // allocated blocks by address
  std::vector<Block*> waiting;      // freed while another stream may still read them
  std::unordered_map<uint32_t, LineUse> uses; // by line
  c10::CachingDeviceAllocator::DeviceStats stats;
  Peaks before_reset; // what the script made torch forget
};

class VirtualAllocator final : public c10::DeviceAllocator {
 public:
  static VirtualAllocator& get();

  void configure(int num_devices, size_t capacity, size_t context);
  Card& card(int device);

  c10::DataPtr allocate(size_t bytes) override;
  c10::DataPtr allocate_on(int device, size_t bytes);
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void*, const void*, std::size_t) const override {}
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t = {0, 0}) override;
  void recordStream(const c10::DataPtr& pointer, c10::Stream stream) override;
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  Peaks peaks(int device);
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override;
  int device_of(const void* address) const; // -1: not a virtual address
  int num_cards() const { return static_cast<int>(cards_.size()); }
  std::unordered_map<uint32_t, LineUse> uses(int device);
  std::unordered_map<uint32_t, LineUse> living(int device); // what is held now

  void begin_pool(int device, c10::MempoolId_t pool);
  void end_pool(int device, c10::MempoolId_t pool);
  void share_pool(int device, c10::MempoolId_t pool);
  void leave_pool(int device, c10::MempoolId_t pool);
  int pool_users(int device, c10::MempoolId_t pool);

  void free(Block* block);
  static void delete_block(void* context);

  struct SnapshotBlock {
    int device;
    int64_t stream;
    uintptr_t segment, address;
    size_t size, requested;
    bool allocated, is_small;
    uint32_t line;
  };
  std::vector<SnapshotBlock> snapshot();

 private:
  Block* block_of_compiler(Card& card, int device, size_t bytes);
  Pool& pool_for(Card& card, size_t size);
  Block* find(Card& card, Pool& pool, int64_t stream, size_t size);
  Block* new_segment(Card& card, Pool& pool, int device, int64_t stream, size_t size, size_t requested);
  Block* grow_segment(Card& card, Pool& pool, int device, int64_t stream, size_t size);
  void take(Card& card, int device, Pool& pool, int64_t stream, size_t size, size_t wanted);
  Block* split(Card& card, Block* block, size_t size);
  void release(Card& card, Block* block);
  bool release_cached(Card& card);
  void release_waiting(Card& card);
  [[noreturn]] void out_of_memory(Card& card, int device, size_t size);

  bool expandable();

  std::mutex mutex_;
  int expandable_ = -1; // -1: the environment was not asked yet
  std::vector<std::unique_ptr<Card>> cards_;
  uint32_t next_id_ = 0;
};

} // namespace sandtable
