#include "allocator.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <iomanip>
#include <sstream>
#include <unordered_map>

#include "device.h"
#include "recorder.h"

namespace sandtable {
namespace {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;

constexpr size_t kMinBlock = 512;
constexpr size_t kSmallRequest = 1048576;
constexpr size_t kSmallSegment = 2097152;
constexpr size_t kLargeSegment = 20971520;
constexpr size_t kMinLargeRequest = 10485760;
constexpr size_t kRoundLarge = 2097152;
constexpr size_t kRangePerCard = size_t{1} << 42;    // 4 TiB of addresses a card
constexpr size_t kRangePerSegment = size_t{1} << 39; // of which an expandable segment gets 512 GiB

size_t round_up(size_t size, size_t unit) {
  return (size + unit - 1) / unit * unit;
}

size_t segment_size(size_t size) {
  if (size <= kSmallRequest)
    return kSmallSegment;
  return size < kMinLargeRequest ? kLargeSegment : round_up(size, kRoundLarge);
}

// Each figure is kept for all blocks and for those of the small or the large pool.
template <typename Change>
void change(StatArray& stat, const Pool& pool, Change apply) {
  apply(stat[static_cast<size_t>(StatType::AGGREGATE)]);
  apply(stat[static_cast<size_t>(pool.is_small ? StatType::SMALL_POOL : StatType::LARGE_POOL)]);
}

void grow(StatArray& stat, const Pool& pool, size_t by) {
  change(stat, pool, [by](Stat& s) { s.increase(by); });
}

void shrink(StatArray& stat, const Pool& pool, size_t by) {
  change(stat, pool, [by](Stat& s) { s.decrease(by); });
}

std::string readable(size_t bytes) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(2);
  if (bytes < 1024)
    text << bytes << " bytes";
  else if (bytes < (size_t{1} << 20))
    text << bytes / 1024.0 << " KiB";
  else if (bytes < (size_t{1} << 30))
    text << bytes / 1048576.0 << " MiB";
  else
    text << bytes / 1073741824.0 << " GiB";
  return text.str();
}

int64_t current(const StatArray& stat) {
  return stat[static_cast<size_t>(StatType::AGGREGATE)].current;
}

// One reservation for all cards: no memory, only numbers that nobody else will hand out.
uintptr_t reserved_range() {
  static uintptr_t base = [] {
    void* got = mmap(nullptr, kRangePerCard * 16, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return got == MAP_FAILED ? uintptr_t{1} << 46 : reinterpret_cast<uintptr_t>(got);
  }();
  return base;
}

} // namespace

VirtualAllocator& VirtualAllocator::get() {
  static VirtualAllocator* allocator = new VirtualAllocator();
  return *allocator;
}

void VirtualAllocator::configure(int num_devices, size_t capacity, size_t context) {
  expandable_ = -1;
  cards_.clear();
  for (int device = 0; device < num_devices; ++device) {
    auto card = std::make_unique<Card>();
    card->capacity = capacity;
    card->context = context;
    card->next_address = reserved_range() + kRangePerCard * (device % 16) + kSmallSegment;
    card->stats.max_split_size = -1;
    cards_.push_back(std::move(card));
  }
}

Card& VirtualAllocator::card(int device) {
  TORCH_CHECK(
      device >= 0 && device < static_cast<int>(cards_.size()),
      "CUDA error: invalid device ordinal: device must be below ", cards_.size(), ", but got ", device);
  return *cards_[device];
}

c10::DataPtr VirtualAllocator::allocate(size_t bytes) {
  return allocate_on(current_device(), bytes);
}

c10::DataPtr VirtualAllocator::allocate_on(int device, size_t bytes) {
  c10::Device where(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device));
  if (bytes == 0)
    return {nullptr, nullptr, &delete_block, where};
  uint32_t line = Recorder::get().recording() ? current_place().line : 0;
  std::lock_guard<std::mutex> lock(mutex_);
  Card& on = card(device);
  if (Recorder::get().compiling()) {
    Block* block = block_of_compiler(on, device, bytes);
    return {reinterpret_cast<void*>(block->address), block, &delete_block, where};
  }
  release_waiting(on);
  size_t size = std::max(kMinBlock, round_up(bytes, kMinBlock));
  Pool& pool = pool_for(on, size);
  int64_t stream = current_stream(device);
  Block* block = find(on, pool, stream, size);
  if (block == nullptr)
    block = expandable() ? grow_segment(on, pool, device, stream, size)
                         : new_segment(on, pool, device, stream, segment_size(size), size);
  block = split(on, block, size);
  block->allocated = true;
  block->requested = bytes;
  block->line = line;
  handed_out(*block);
  block->id = next_id_++;
  on.live[block->address] = block;
  LineUse& use = on.uses[line];
  use.num_bytes += static_cast<int64_t>(bytes);
  use.num_tensors += 1;
  grow(on.stats.allocation, pool, 1);
  grow(on.stats.active, pool, 1);
  grow(on.stats.allocated_bytes, pool, block->size);
  grow(on.stats.active_bytes, pool, block->size);
  grow(on.stats.requested_bytes, pool, bytes);
  Recorder::get().add(Kind::kAlloc, block->id, static_cast<uint16_t>(stream), block->size, Phase::kForward, line);
  return {reinterpret_cast<void*>(block->address), block, &delete_block, where};
}

// What torch.compile itself takes while it traces depends on what its caches hold, so it is not part of the run: it is
// neither counted nor recorded, and lies where no tensor of the script will.
Block* VirtualAllocator::block_of_compiler(Card& card, int device, size_t bytes) {
  auto* block = new Block();
  block->device = device;
  block->stream = current_stream(device);
  block->size = block->requested = bytes;
  block->allocated = block->is_of_compiler = true;
  block->address = card.next_address;
  card.next_address += round_up(bytes, kRoundLarge);
  card.live[block->address] = block;
  return block;
}

Pool& VirtualAllocator::pool_for(Card& card, size_t size) {
  if (card.pools_now.empty())
    return size <= kSmallRequest ? card.small : card.large;
  PrivatePool& own = card.private_pools[card.pools_now.back()];
  return size <= kSmallRequest ? own.small : own.large;
}

void VirtualAllocator::begin_pool(int device, c10::MempoolId_t pool) {
  std::lock_guard<std::mutex> lock(mutex_);
  card(device).pools_now.push_back(pool);
}

void VirtualAllocator::end_pool(int device, c10::MempoolId_t pool) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto& now = card(device).pools_now;
  if (auto last = std::find(now.rbegin(), now.rend(), pool); last != now.rend())
    now.erase(std::next(last).base());
}

void VirtualAllocator::share_pool(int device, c10::MempoolId_t pool) {
  std::lock_guard<std::mutex> lock(mutex_);
  card(device).private_pools[pool].num_users += 1;
}

void VirtualAllocator::leave_pool(int device, c10::MempoolId_t pool) {
  std::lock_guard<std::mutex> lock(mutex_);
  card(device).private_pools[pool].num_users -= 1;
}

int VirtualAllocator::pool_users(int device, c10::MempoolId_t pool) {
  std::lock_guard<std::mutex> lock(mutex_);
  return card(device).private_pools[pool].num_users;
}

Block* VirtualAllocator::find(Card&, Pool& pool, int64_t stream, size_t size) {
  Block key;
  key.stream = stream;
  key.size = size;
  auto found = pool.free_blocks.lower_bound(&key);
  if (found == pool.free_blocks.end() || (*found)->stream != stream)
    return nullptr;
  Block* block = *found;
  pool.free_blocks.erase(found);
  return block;
}

// What set_per_process_memory_fraction leaves of the card.
static size_t allowed_bytes(const Card& card) {
  return static_cast<size_t>(static_cast<double>(card.capacity) * card.fraction);
}

// Asks the card for memory: what cudaMalloc would do.
void VirtualAllocator::take(Card& card, int device, Pool& pool, int64_t stream, size_t size, size_t wanted) {
  auto fits = [&] {
    size_t reserved = current(card.stats.reserved_bytes) + size;
    return reserved <= allowed_bytes(card) && reserved + card.context <= card.capacity;
  };
  if (!fits() && release_cached(card))
    card.stats.num_alloc_retries += 1;
  if (!fits()) {
    card.stats.num_ooms += 1;
    out_of_memory(card, device, wanted);
  }
  card.stats.num_device_alloc += 1;
  grow(card.stats.reserved_bytes, pool, size);
  Recorder::get().add(Kind::kSegmentAlloc, 0, static_cast<uint16_t>(stream), size, Phase::kForward, 0);
}

Block* VirtualAllocator::new_segment(Card& card, Pool& pool, int device, int64_t stream, size_t size, size_t wanted) {
  take(card, device, pool, stream, size, wanted);
  auto* block = new Block();
  block->device = device;
  block->stream = stream;
  block->size = size;
  block->pool = &pool;
  block->address = card.next_address;
  card.next_address += round_up(size, kRoundLarge);
  grow(card.stats.segment, pool, 1);
  return block;
}

// Each stream's segment has a range of addresses of its own, so that what is mapped later lies behind what was before.
Block* VirtualAllocator::grow_segment(Card& card, Pool& pool, int device, int64_t stream, size_t size) {
  size_t unit = pool.is_small ? kSmallSegment : kLargeSegment;
  Block*& last = pool.last[stream];
  bool extends = last != nullptr && !last->allocated && last->other_streams.empty();
  size_t more = round_up(extends ? size - last->size : size, unit);
  take(card, device, pool, stream, more, size);
  extends = last != nullptr && !last->allocated && last->other_streams.empty(); // taking may have merged blocks
  if (extends) {
    Block* block = last;
    pool.free_blocks.erase(block);
    if (block->previous != nullptr) {
      shrink(card.stats.inactive_split, pool, 1);
      shrink(card.stats.inactive_split_bytes, pool, block->size);
    }
    block->size += more;
    if (block->previous != nullptr) {
      grow(card.stats.inactive_split, pool, 1);
      grow(card.stats.inactive_split_bytes, pool, block->size);
    }
    return block;
  }
  auto* block = new Block();
  block->device = device;
  block->stream = stream;
  block->size = more;
  block->pool = &pool;
  if (last == nullptr) {
    block->address = card.next_address;
    card.next_address += kRangePerSegment;
    grow(card.stats.segment, pool, 1);
  } else {
    block->address = last->address + last->size;
    block->previous = last;
    last->next = block;
    grow(card.stats.inactive_split, pool, 1);
    grow(card.stats.inactive_split_bytes, pool, block->size);
  }
  last = block;
  return block;
}

bool VirtualAllocator::expandable() {
  if (expandable_ < 0) {
    expandable_ = 0;
    for (const char* name : {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"})
      if (const char* text = std::getenv(name))
        expandable_ |= std::string(text).find("expandable_segments:True") != std::string::npos;
  }
  return expandable_ == 1;
}

Block* VirtualAllocator::split(Card& card, Block* block, size_t size) {
  bool was_piece = block->previous != nullptr || block->next != nullptr;
  size_t rest = block->size - size;
  bool worth_it = block->pool->is_small ? rest >= kMinBlock : rest > kSmallRequest;
  if (was_piece) {
    shrink(card.stats.inactive_split, *block->pool, 1);
    shrink(card.stats.inactive_split_bytes, *block->pool, block->size);
  }
  if (!worth_it)
    return block;
  auto* remainder = new Block();
  remainder->device = block->device;
  remainder->stream = block->stream;
  remainder->pool = block->pool;
  remainder->address = block->address + size;
  remainder->size = rest;
  remainder->previous = block;
  remainder->next = block->next;
  if (block->next != nullptr)
    block->next->previous = remainder;
  block->next = remainder;
  block->size = size;
  if (auto tail = block->pool->last.find(block->stream); tail != block->pool->last.end() && tail->second == block)
    tail->second = remainder;
  block->pool->free_blocks.insert(remainder);
  grow(card.stats.inactive_split, *block->pool, 1);
  grow(card.stats.inactive_split_bytes, *block->pool, rest);
  return block;
}

void VirtualAllocator::delete_block(void* context) {
  if (context != nullptr)
    get().free(static_cast<Block*>(context));
}

c10::DeleterFnPtr VirtualAllocator::raw_deleter() const {
  return &delete_block;
}

void VirtualAllocator::free(Block* block) {
  std::lock_guard<std::mutex> lock(mutex_);
  Card& on = card(block->device);
  on.live.erase(block->address);
  if (block->is_of_compiler) {
    delete block;
    return;
  }
  block->allocated = false;
  block->shadow = Shadow();
  block->facts.reset();
  block->is_parameter = false;
  block->identity = {};
  block->written_line = 0;
  block->scale = {};
  block->contents.clear();
  block->gather = 0;
  freed(*block);
  shrink(on.stats.allocation, *block->pool, 1);
  shrink(on.stats.allocated_bytes, *block->pool, block->size);
  shrink(on.stats.requested_bytes, *block->pool, block->requested);
  Recorder::get().add(
      Kind::kFree, block->id, static_cast<uint16_t>(block->stream), block->size, Phase::kForward, block->line);
  if (block->other_streams.empty())
    release(on, block);
  else
    on.waiting.push_back(block);
}

// Memory that another stream was still reading is taken as read by the time the host asks for memory again.
void VirtualAllocator::release_waiting(Card& card) {
  for (Block* block : card.waiting) {
    block->other_streams.clear();
    release(card, block);
  }
  card.waiting.clear();
}

void VirtualAllocator::release(Card& card, Block* block) {
  Pool& pool = *block->pool;
  shrink(card.stats.active, pool, 1);
  shrink(card.stats.active_bytes, pool, block->size);
  auto is_free = [](Block* b) { return b != nullptr && !b->allocated && b->other_streams.empty(); };
  auto forget = [&](Block* b) {
    pool.free_blocks.erase(b);
    shrink(card.stats.inactive_split, pool, 1);
    shrink(card.stats.inactive_split_bytes, pool, b->size);
  };
  if (Block* before = block->previous; is_free(before)) {
    forget(before);
    block->address = before->address;
    block->size += before->size;
    block->previous = before->previous;
    if (block->previous != nullptr)
      block->previous->next = block;
    delete before; // never the last of its segment: this block is behind it
  }
  if (Block* after = block->next; is_free(after)) {
    forget(after);
    block->size += after->size;
    block->next = after->next;
    if (block->next != nullptr)
      block->next->previous = block;
    if (auto tail = pool.last.find(block->stream); tail != pool.last.end() && tail->second == after)
      tail->second = block;
    delete after;
  }
  pool.free_blocks.insert(block);
  if (block->previous != nullptr || block->next != nullptr) {
    grow(card.stats.inactive_split, pool, 1);
    grow(card.stats.inactive_split_bytes, pool, block->size);
  }
}

bool VirtualAllocator::release_cached(Card& card) {
  bool any = false;
  release_waiting(card);
  std::vector<Pool*> pools{&card.small, &card.large};
  for (auto& [_, pool] : card.private_pools)
    if (pool.num_users == 0)
      pools.insert(pools.end(), {&pool.small, &pool.large});
  for (Pool* pool : pools) {
    for (auto it = pool->free_blocks.begin(); it != pool->free_blocks.end();) {
      Block* block = *it;
      if (block->previous != nullptr || block->next != nullptr) {
        ++it;
        continue;
      }
      it = pool->free_blocks.erase(it);
      if (auto tail = pool->last.find(block->stream); tail != pool->last.end() && tail->second == block)
        pool->last.erase(tail);
      card.stats.num_device_free += 1;
      shrink(card.stats.segment, *pool, 1);
      shrink(card.stats.reserved_bytes, *pool, block->size);
      Recorder::get().add(
          Kind::kSegmentFree, 0, static_cast<uint16_t>(block->stream), block->size, Phase::kForward, 0);
      delete block;
      any = true;
    }
  }
  return any;
}

void VirtualAllocator::out_of_memory(Card& card, int device, size_t size) {
  std::unordered_map<uint32_t, size_t> held;
  for (const auto& [address, block] : card.live)
    held[block->line] += block->size;
  std::vector<std::pair<size_t, uint32_t>> most;
  for (const auto& [line, bytes] : held)
    most.emplace_back(bytes, line);
  std::sort(most.rbegin(), most.rend());
  std::ostringstream lines;
  for (size_t i = 0; i < most.size() && i < 5; ++i)
    lines << "\n  " << readable(most[i].first) << "  " << describe_line(most[i].second);
  size_t reserved = current(card.stats.reserved_bytes);
  size_t allocated = current(card.stats.allocated_bytes);
  size_t used = reserved + card.context;
  TORCH_CHECK_WITH(
      OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", readable(size), ". GPU ", device,
      " has a total capacity of ", readable(card.capacity), " of which ",
      readable(card.capacity > used ? card.capacity - used : 0),
      " is free. Including non-PyTorch memory, this process has ", readable(used), " memory in use. ",
      card.fraction < 1 ? readable(allowed_bytes(card)) + " allowed; " : "",
      "Of the allocated memory ", readable(allocated), " is allocated by PyTorch, and ", readable(reserved - allocated),
      " is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting ",
      "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management  "
      "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)",
      "\nLines of the script that hold the most memory:", lines.str());
}

void VirtualAllocator::emptyCache(c10::MempoolId_t) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& card : cards_)
    release_cached(*card);
}

void VirtualAllocator::recordStream(const c10::DataPtr& pointer, c10::Stream stream) {
  auto* block = static_cast<Block*>(pointer.get_context());
  if (block == nullptr || pointer.get_deleter() != &delete_block)
    return;
  std::lock_guard<std::mutex> lock(mutex_);
  if (stream.id() != block->stream)
    block->other_streams.insert(stream.id());
}

c10::CachingDeviceAllocator::DeviceStats VirtualAllocator::getDeviceStats(c10::DeviceIndex device) {
  std::lock_guard<std::mutex> lock(mutex_);
  return card(device).stats;
}

namespace {
template <typename Function>
void for_each_stat(c10::CachingDeviceAllocator::DeviceStats& stats, Function apply) {
  for (StatArray* array :
       {&stats.allocation, &stats.segment, &stats.active, &stats.inactive_split, &stats.allocated_bytes,
        &stats.reserved_bytes, &stats.active_bytes, &stats.inactive_split_bytes, &stats.requested_bytes})
    for (Stat& stat : *array)
      apply(stat);
}
} // namespace

void VirtualAllocator::resetAccumulatedStats(c10::DeviceIndex device) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto& stats = card(device).stats;
  card(device).before_reset.num_ooms += stats.num_ooms;
  for_each_stat(stats, [](Stat& stat) { stat.reset_accumulated(); });
  stats.num_alloc_retries = stats.num_ooms = 0;
}

void VirtualAllocator::resetPeakStats(c10::DeviceIndex device) {
  std::lock_guard<std::mutex> lock(mutex_);
  Card& on = card(device);
  on.before_reset.allocated = std::max(on.before_reset.allocated, on.stats.allocated_bytes[0].peak);
  on.before_reset.reserved = std::max(on.before_reset.reserved, on.stats.reserved_bytes[0].peak);
  for_each_stat(on.stats, [](Stat& stat) { stat.reset_peak(); });
}

Peaks VirtualAllocator::peaks(int device) {
  std::lock_guard<std::mutex> lock(mutex_);
  const Card& on = card(device);
  return {
      std::max(on.before_reset.allocated, on.stats.allocated_bytes[0].peak),
      std::max(on.before_reset.reserved, on.stats.reserved_bytes[0].peak),
      on.before_reset.num_ooms + on.stats.num_ooms};
}

std::pair<size_t, size_t> VirtualAllocator::getMemoryInfo(c10::DeviceIndex device) {
  std::lock_guard<std::mutex> lock(mutex_);
  Card& on = card(device);
  size_t used = current(on.stats.reserved_bytes) + on.context;
  return {on.capacity > used ? on.capacity - used : 0, on.capacity};
}

std::unordered_map<uint32_t, LineUse> VirtualAllocator::uses(int device) {
  std::lock_guard<std::mutex> lock(mutex_);
  return card(device).uses;
}

std::unordered_map<uint32_t, LineUse> VirtualAllocator::living(int device) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::unordered_map<uint32_t, LineUse> held;
  for (const auto& [address, block] : card(device).live) {
    held[block->line].num_bytes += static_cast<int64_t>(block->requested);
    held[block->line].num_tensors += 1;
  }
  return held;
}

int VirtualAllocator::device_of(const void* address) const {
  auto value = reinterpret_cast<uintptr_t>(address);
  if (value < reserved_range() || value >= reserved_range() + kRangePerCard * 16)
    return -1;
  return static_cast<int>((value - reserved_range()) / kRangePerCard);
}

std::vector<VirtualAllocator::SnapshotBlock> VirtualAllocator::snapshot() {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<SnapshotBlock> all;
  std::unordered_set<Block*> seen;
  for (size_t device = 0; device < cards_.size(); ++device) {
    auto segment_of = [&](Block* block) {
      while (block->previous != nullptr)
        block = block->previous;
      if (!seen.insert(block).second)
        return;
      uintptr_t segment = block->address;
      for (; block != nullptr; block = block->next)
        all.push_back(
            {static_cast<int>(device), block->stream, segment, block->address, block->size, block->requested,
             block->allocated, block->pool->is_small, block->line});
    };
    for (auto& [address, block] : cards_[device]->live)
      if (!block->is_of_compiler)
        segment_of(block);
    std::vector<Pool*> pools{&cards_[device]->small, &cards_[device]->large};
    for (auto& [_, pool] : cards_[device]->private_pools)
      pools.insert(pools.end(), {&pool.small, &pool.large});
    for (Pool* pool : pools)
      for (Block* block : pool->free_blocks)
        segment_of(block);
  }
  return all;
}

} // namespace sandtable
