#include "device.h"

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GeneratorImpl.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstring>
#include <mutex>
#include <random>
#include <unordered_map>

#include "allocator.h"
#include "races.h"
#include "recorder.h"

namespace sandtable {
namespace {

constexpr int kPoolSize = 32;
constexpr int kFirstLibraryStream = 128;
constexpr uint64_t kDefaultSeed = 67280421310721; // torch's own, c10::detail::getNonDeterministicRandom aside

int num_devices = 1;
thread_local int device_now = 0;
thread_local std::vector<int64_t> stream_now;

c10::Stream make_stream(int device, int64_t id) {
  c10::Device where(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device));
  return c10::Stream(c10::Stream::UNSAFE, where, id);
}

struct VirtualEvent {
  uint32_t id;
  std::chrono::steady_clock::time_point when;
};
std::atomic<uint32_t> next_event{1};

// Philox state as CUDA keeps it: a seed and an offset, 16 bytes.
class VirtualGenerator final : public c10::GeneratorImpl {
 public:
  explicit VirtualGenerator(c10::DeviceIndex device)
      : GeneratorImpl({c10::DeviceType::CUDA, device}, c10::DispatchKeySet(c10::DispatchKey::CUDA)) {}
  void set_current_seed(uint64_t seed) override {
    seed_ = seed;
    offset_ = 0;
  }
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    set_current_seed(std::random_device{}());
    return seed_;
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(
        state.numel() == 16 || state.numel() == 8,
        "RNG state of a CUDA generator must be 16 bytes, but got ", state.numel());
    const auto* bytes = static_cast<const char*>(state.data());
    std::memcpy(&seed_, bytes, 8);
    offset_ = 0;
    if (state.numel() == 16)
      std::memcpy(&offset_, bytes + 8, 8);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    auto state = at::detail::empty_cpu({16}, c10::kByte, std::nullopt, std::nullopt, std::nullopt, std::nullopt);
    auto* bytes = static_cast<char*>(state.data_ptr());
    std::memcpy(bytes, &seed_, 8);
    std::memcpy(bytes + 8, &offset_, 8);
    return state.getIntrusivePtr();
  }
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& other) override {
    seed_ = other->current_seed();
    offset_ = other->get_offset();
  }
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override {
    return c10::intrusive_ptr<c10::GeneratorImpl>::reclaim(clone_impl());
  }

 private:
  VirtualGenerator* clone_impl() const override {
    auto* copy = new VirtualGenerator(device().index());
    copy->seed_ = seed_;
    copy->offset_ = offset_;
    return copy;
  }
  uint64_t seed_ = kDefaultSeed;
  uint64_t offset_ = 0;
};

// Pinned memory is ordinary memory whose addresses are remembered.
class PinnedAllocator final : public c10::Allocator {
 public:
  static PinnedAllocator& get() {
    static PinnedAllocator* allocator = new PinnedAllocator();
    return *allocator;
  }
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = bytes ? c10::alloc_cpu(bytes) : nullptr;
    if (memory != nullptr) {
      std::lock_guard<std::mutex> lock(mutex_);
      sizes_[memory] = bytes;
    }
    return {memory, memory, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t count) const override { std::memcpy(to, from, count); }
  bool holds(const void* address) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto after = sizes_.upper_bound(const_cast<void*>(address));
    if (after == sizes_.begin())
      return false;
    --after;
    return static_cast<const char*>(address) < static_cast<const char*>(after->first) + after->second;
  }

 private:
  static void release(void* memory) {
    if (memory == nullptr)
      return;
    {
      std::lock_guard<std::mutex> lock(get().mutex_);
      get().sizes_.erase(memory);
    }
    c10::free_cpu(memory);
  }
  std::mutex mutex_;
  std::map<void*, size_t> sizes_;
};

struct GuardImpl final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    c10::Device before = getDevice();
    set_current_device(device.index());
    return before;
  }
  c10::Device getDevice() const override {
    return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device_now)};
  }
  void setDevice(c10::Device device) const override { set_current_device(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0)
      device_now = device.index();
  }
  c10::Stream getStream(c10::Device device) const override {
    return current_c10_stream(device.index() < 0 ? device_now : device.index());
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high) const override {
    return pool_stream(device.index() < 0 ? device_now : device.index(), high ? -1 : 0);
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return pool_stream(device.index() < 0 ? device_now : device.index(), priority);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    c10::Stream before = current_c10_stream(stream.device_index());
    set_current_stream(stream);
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(stream.id());
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<VirtualEvent*>(event);
  }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr)
      *event = new VirtualEvent();
    auto* at = static_cast<VirtualEvent*>(*event);
    at->id = next_event++;
    at->when = std::chrono::steady_clock::now();
    Recorder::get().add(Kind::kEventRecord, at->id, static_cast<uint16_t>(stream.id()), 0);
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr)
      Recorder::get().add(
          Kind::kEventWait, static_cast<VirtualEvent*>(event)->id, static_cast<uint16_t>(stream.id()), 0);
  }
  bool queryEvent(void* event) const override {
    if (event != nullptr)
      host_saw_event(static_cast<VirtualEvent*>(event)->id);
    return true;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(num_devices); }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override { return {}; }
  bool queryStream(const c10::Stream& stream) const override {
    host_saw_stream(static_cast<uint16_t>(stream.id()));
    return true;
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    Recorder::get().host_sync(Sync::kStream, static_cast<uint16_t>(stream.id()));
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr)
      Recorder::get().add(
          Kind::kHostSync, static_cast<VirtualEvent*>(event)->id, 0, static_cast<int64_t>(Sync::kEvent));
  }
  void synchronizeDevice(const c10::DeviceIndex) const override { Recorder::get().host_sync(Sync::kDevice, 0); }
  void recordDataPtrOnStream(const c10::DataPtr& pointer, const c10::Stream& stream) const override {
    VirtualAllocator::get().recordStream(pointer, stream);
  }
  // There is no clock on the card: the host's stands in, so that a rate computed from it is finite.
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    TORCH_CHECK(first && second, "Both events must be recorded before calculating elapsed time.");
    std::chrono::duration<double, std::milli> gap =
        static_cast<VirtualEvent*>(second)->when - static_cast<VirtualEvent*>(first)->when;
    return std::max(gap.count(), 1e-3);
  }
};

std::vector<at::Generator>& generators() {
  static auto* all = new std::vector<at::Generator>();
  while (static_cast<int>(all->size()) < num_devices)
    all->push_back(at::make_generator<VirtualGenerator>(static_cast<c10::DeviceIndex>(all->size())));
  return *all;
}

} // namespace

struct CUDAHooks final : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return num_devices > 0; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return generators().at(device < 0 ? device_now : device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<VirtualGenerator>(device < 0 ? static_cast<c10::DeviceIndex>(device_now) : device);
  }
  c10::Device getDeviceFromPtr(void* data) const override {
    int device = VirtualAllocator::get().device_of(data);
    TORCH_CHECK(device >= 0, "The specified pointer resides on host memory and is not registered with any CUDA device.");
    return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device)};
  }
  bool isPinnedPtr(const void* data) const override { return PinnedAllocator::get().holds(data); }
  bool hasCUDA() const override { return num_devices > 0; }
  bool hasCUDART() const override { return num_devices > 0; }
  bool hasCuBLASLt() const override { return true; }
  bool hasCuSOLVER() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex device) const override { return device >= 0 && device < num_devices; }
  c10::DeviceIndex current_device() const override { return static_cast<c10::DeviceIndex>(device_now); }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(num_devices); }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_current_device(device); }
  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(device_now); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    auto before = static_cast<c10::DeviceIndex>(device_now);
    set_current_device(device);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &PinnedAllocator::get(); }
  c10::Allocator* getCUDADeviceAllocator() const override { return &VirtualAllocator::get(); }
  int getNumGPUs() const override { return num_devices; }
  std::string showConfig() const override { return "sandtable virtual GPU"; }
  long versionCUDART() const override { return 12080; }
  int64_t cuFFTGetPlanCacheMaxSize(c10::DeviceIndex) const override { return 4096; }
  void cuFFTSetPlanCacheMaxSize(c10::DeviceIndex, int64_t) const override {}
  int64_t cuFFTGetPlanCacheSize(c10::DeviceIndex) const override { return 0; }
  void cuFFTClearPlanCache(c10::DeviceIndex) const override {}
  void deviceSynchronize(c10::DeviceIndex) const override { Recorder::get().host_sync(Sync::kDevice, 0); }
};

void set_device_count(int count) {
  num_devices = count;
}

int device_count() {
  return num_devices;
}

int current_device() {
  return device_now;
}

void set_current_device(int device) {
  if (device < 0)
    return;
  TORCH_CHECK(
      device < num_devices, "CUDA error: invalid device ordinal: device must be below ", num_devices,
      " (the GPUs of one node), but got ", device);
  device_now = device;
}

int64_t current_stream(int device) {
  return device < static_cast<int>(stream_now.size()) ? stream_now[device] : 0;
}

c10::Stream current_c10_stream(int device) {
  return make_stream(device, current_stream(device));
}

void set_current_stream(c10::Stream stream) {
  size_t device = stream.device_index();
  if (stream_now.size() <= device)
    stream_now.resize(device + 1, 0);
  stream_now[device] = stream.id();
}

c10::Stream pool_stream(int device, int priority) {
  static std::atomic<int> next[2];
  int high = priority < 0;
  int64_t id = 1 + high * kPoolSize + next[high]++ % kPoolSize;
  return make_stream(device, id);
}

c10::Stream library_stream(int device, int number) {
  return make_stream(device, kFirstLibraryStream + number);
}

at::Generator default_generator(int device) {
  return generators().at(device);
}

uint64_t draw_seed(const at::Generator& generator) {
  auto used = generator.defined() ? generator : default_generator(device_now);
  std::lock_guard<std::mutex> lock(used.mutex());
  uint64_t offset = used.get_offset();
  used.set_offset(offset + 4);
  return used.current_seed() * 0x9E3779B97F4A7C15ULL + offset;
}

using at::CUDAHooksArgs;
using at::CUDAHooksRegistry;
using at::RegistererCUDAHooksRegistry;

// A CUDA build has registered its own hooks, guard and allocator: preferred, later and with a higher priority win.
C10_REGISTER_CLASS_WITH_PRIORITY(CUDAHooksRegistry, CUDAHooks, c10::REGISTRY_PREFERRED, CUDAHooks)
C10_REGISTER_GUARD_IMPL(CUDA, GuardImpl)

namespace {
struct RegisterAllocator {
  RegisterAllocator() {
    VirtualAllocator::get().configure(1, size_t{80} << 30, 0);
    c10::SetAllocator(c10::DeviceType::CUDA, &VirtualAllocator::get(), 100);
  }
} register_allocator;
} // namespace

} // namespace sandtable
