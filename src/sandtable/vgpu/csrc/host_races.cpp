#include "host_races.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "identity.h"
#include "races.h"
#include "recorder.h"

namespace sandtable {
namespace {

constexpr size_t kMostFlights = 1024;

// A copy that may be under way.
struct Flight {
  int64_t number;
  c10::weak_intrusive_ptr<c10::StorageImpl> storage; // freed memory is not handed out before the copy is over
  const c10::StorageImpl* memory;
  Access access; // of the kernel; the bytes are those of the memory on the host
  bool writes_host;
  Digest contents;
};

struct View {
  std::vector<int64_t> flights;
  uint32_t line;
};

struct HostOperator {
  bool touches_memory = false;
  std::vector<bool> writes;
};

// Whoever holds it does not ask for the interpreter, whose holder may wait for it.
std::mutex flights_mutex;
std::vector<Flight> flights;
std::unordered_map<int64_t, View> views;
int64_t last_flight = 0, last_view = 0;
thread_local std::optional<at::CallbackHandle> callback;

void look_at(const at::Tensor& tensor, bool is_write, const char* by, uint32_t line) {
  const auto* memory = tensor.storage().unsafeGetStorageImpl();
  int64_t size = static_cast<int64_t>(tensor.element_size());
  int64_t begin = tensor.storage_offset() * size, end = static_cast<int64_t>(tensor.storage().nbytes());
  if (tensor.is_non_overlapping_and_dense())
    end = begin + tensor.numel() * size;
  std::erase_if(flights, [&](const Flight& flight) {
    bool overlaps = flight.memory == memory && flight.access.begin < end && begin < flight.access.end;
    if (!overlaps || !(is_write || flight.writes_host) || flight.storage.expired())
      return false;
    if (!host_waited_for(flight.access))
      report_host_race(is_write, flight.access, by, line);
    return true;
  });
}

bool is_flying(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cpu() || !tensor.has_storage())
    return false;
  const auto* memory = tensor.storage().unsafeGetStorageImpl();
  return std::any_of(flights.begin(), flights.end(), [&](const Flight& flight) { return flight.memory == memory; });
}

// Views and what only makes memory touch nothing; operators without a kernel of the CPU's call others.
HostOperator properties_of(const at::RecordFunction& call) {
  static const std::set<std::string> without_access{"aten::resize_", "aten::set_", "aten::is_pinned", "aten::is_set_to"};
  HostOperator properties;
  auto schema = call.operator_schema();
  if (!schema || without_access.contains(schema->name()))
    return properties;
  auto handle = c10::Dispatcher::singleton().findSchema(schema->operator_name());
  if (!handle || !(handle->hasKernelForDispatchKey(c10::DispatchKey::CPU) || schema->name() == "aten::copy_"))
    return properties;
  for (const auto& result : schema->returns())
    if (result.alias_info() && !result.alias_info()->isWrite())
      return properties;
  properties.touches_memory = true;
  for (const auto& argument : schema->arguments())
    properties.writes.push_back(argument.alias_info() && argument.alias_info()->isWrite());
  return properties;
}

template <typename Function>
void for_each_tensor(c10::ArrayRef<const c10::IValue> inputs, const Function& function) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].isTensor())
      function(inputs[i].toTensor(), i);
    else if (inputs[i].isTensorList())
      for (const at::Tensor& tensor : inputs[i].toTensorVector())
        function(tensor, i);
  }
}

std::unique_ptr<at::ObserverContext> on_operator(const at::RecordFunction& call) {
  static std::unordered_map<const char*, HostOperator> known; // only the script's thread comes here
  bool is_concerned = false, is_on_card = false;
  {
    std::lock_guard<std::mutex> lock(flights_mutex);
    for_each_tensor(call.inputs(), [&](const at::Tensor& tensor, size_t) {
      is_on_card |= tensor.defined() && tensor.is_cuda();
      is_concerned |= is_flying(tensor);
    });
  }
  if (!is_concerned || is_on_card)
    return nullptr;
  auto entry = known.find(call.name());
  if (entry == known.end())
    entry = known.emplace(call.name(), properties_of(call)).first;
  const HostOperator& properties = entry->second;
  if (!properties.touches_memory)
    return nullptr;
  uint32_t line = current_place().line;
  std::lock_guard<std::mutex> lock(flights_mutex);
  for_each_tensor(call.inputs(), [&](const at::Tensor& tensor, size_t i) {
    if (is_flying(tensor))
      look_at(tensor, i < properties.writes.size() && properties.writes[i], call.name(), line);
  });
  return nullptr;
}

void watch_operators() {
  if (!callback && Recorder::get().is_main())
    callback = at::addThreadLocalCallback(
        at::RecordFunctionCallback(&on_operator).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

void forget_landed() {
  std::erase_if(flights, [](const Flight& flight) { return flight.storage.expired() || host_waited_for(flight.access); });
  if (flights.empty() && callback) {
    at::removeCallback(*callback);
    callback.reset();
  }
}

} // namespace

void copy_takes_off(const at::Tensor& host, bool writes_host) {
  if (!follows_races() || !host.has_storage())
    return;
  std::lock_guard<std::mutex> lock(flights_mutex);
  forget_landed();
  int64_t size = static_cast<int64_t>(host.element_size());
  Access access = kernel_under_way();
  access.begin = host.storage_offset() * size;
  access.end = host.is_non_overlapping_and_dense() ? access.begin + host.numel() * size
                                                   : static_cast<int64_t>(host.storage().nbytes());
  Digest contents = writes_host ? 0 : identity_of(host).exact;
  auto* memory = host.storage().unsafeGetStorageImpl();
  // What was written by other means than torch's operators shows in what the next copy finds.
  std::erase_if(flights, [&](const Flight& flight) {
    bool is_same = flight.memory == memory && !flight.writes_host && !writes_host &&
        flight.access.begin == access.begin && flight.access.end == access.end;
    if (is_same && flight.contents != contents)
      report_host_race(true, flight.access, "the script", access.line);
    return is_same;
  });
  if (flights.size() < kMostFlights)
    flights.push_back(
        {++last_flight, host.storage().getWeakStorageImpl(), memory, access, writes_host, contents});
  watch_operators();
}

void settle_copies() {
  std::lock_guard<std::mutex> lock(flights_mutex);
  forget_landed();
}

void host_reads_memory(const at::Tensor& tensor, const char* by) {
  uint32_t line = current_place().line;
  std::lock_guard<std::mutex> lock(flights_mutex);
  if (is_flying(tensor))
    look_at(tensor, false, by, line);
}

int64_t begin_host_view(const at::Tensor& tensor) {
  uint32_t line = current_place().line;
  std::lock_guard<std::mutex> lock(flights_mutex);
  if (!is_flying(tensor))
    return 0;
  View view{{}, line};
  for (const Flight& flight : flights)
    if (flight.memory == tensor.storage().unsafeGetStorageImpl() && flight.writes_host)
      view.flights.push_back(flight.number);
  views.emplace(++last_view, std::move(view));
  return last_view;
}

void end_host_view(int64_t number) {
  std::lock_guard<std::mutex> lock(flights_mutex);
  auto entry = views.find(number);
  if (entry == views.end())
    return;
  const View& view = entry->second;
  for (const Flight& flight : flights)
    if (std::count(view.flights.begin(), view.flights.end(), flight.number) && !host_waited_for(flight.access))
      report_host_race(false, flight.access, "an array", view.line);
  views.erase(entry);
}

} // namespace sandtable
