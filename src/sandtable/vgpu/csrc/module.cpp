// The Python face of the core: module sandtable_core. Thin: each function calls one thing.
#include <torch/csrc/Generator.h>
#include <torch/csrc/Storage.h>
#include <torch/csrc/utils/device_lazy_init.h>
#include <torch/csrc/utils/pybind.h>
#include <pybind11/chrono.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <cstring>

#include "graphs.h"
#include "allocator.h"
#include "audit_events.h"
#include "device.h"
#include "gathers.h"
#include "host_races.h"
#include "identity.h"
#include "mean_losses.h"
#include "nccl.h"
#include "operators.h"
#include "races.h"
#include "real_values.h"
#include "recorder.h"
#include "returns.h"
#include "routing.h"
#include "shapes.h"
#include "unrecorded.h"
#include "updates.h"
#include "values.h"

namespace py = pybind11;
using namespace sandtable;

namespace {

template <typename T>
py::bytes raw(const std::vector<T>& column) {
  return py::bytes(reinterpret_cast<const char*>(column.data()), column.size() * sizeof(T));
}

py::dict records() {
  Recorder& r = Recorder::get();
  std::lock_guard<std::mutex> lock(r.mutex);
  py::dict out;
  out["kind"] = raw(r.kind);
  out["ref"] = raw(r.ref);
  out["stream"] = raw(r.stream);
  out["phase"] = raw(r.phase);
  out["line"] = raw(r.line);
  out["value"] = raw(r.value);
  out["mark"] = raw(r.mark);
  out["job"] = raw(r.job);
  return out;
}

py::dict calls() {
  CallTable& t = call_table();
  py::dict out;
  out["op"] = raw(t.op);
  out["group"] = raw(t.group);
  out["seq"] = raw(t.seq);
  out["dtype"] = raw(t.dtype);
  out["bytes_in"] = raw(t.bytes_in);
  out["bytes_out"] = raw(t.bytes_out);
  out["peer"] = raw(t.peer);
  out["stream"] = raw(t.stream);
  out["line"] = raw(t.line);
  out["is_async"] = raw(t.is_async);
  out["batch"] = raw(t.batch);
  out["reduce"] = raw(t.reduce);
  out["splits"] = raw(t.splits);
  out["ops"] = t.ops;
  out["dtypes"] = t.dtypes;
  out["split_lists"] = t.split_lists;
  return out;
}

py::list line_list() {
  py::list out;
  for (const Line& line : known_lines())
    out.append(py::make_tuple(line.file, line.line, line.function));
  return out;
}

py::list note_list() {
  py::list out;
  for (const Note& note : Recorder::get().notes)
    out.append(py::make_tuple(note.kind, note.text, note.line));
  return out;
}

py::dict memory_stats(int device) {
  auto stats = VirtualAllocator::get().getDeviceStats(static_cast<c10::DeviceIndex>(device));
  auto one = [](const c10::CachingAllocator::Stat& stat) {
    py::dict out;
    out["current"] = stat.current;
    out["peak"] = stat.peak;
    out["allocated"] = stat.allocated;
    out["freed"] = stat.freed;
    return out;
  };
  auto array = [&](const c10::CachingAllocator::StatArray& stat) {
    const char* names[] = {"all", "small_pool", "large_pool"};
    py::dict out;
    for (size_t i = 0; i < 3; ++i)
      out[names[i]] = one(stat[i]);
    return out;
  };
  py::dict out;
  out["num_alloc_retries"] = stats.num_alloc_retries;
  out["num_ooms"] = stats.num_ooms;
  out["max_split_size"] = stats.max_split_size;
  out["num_sync_all_streams"] = stats.num_sync_all_streams;
  out["num_device_alloc"] = stats.num_device_alloc;
  out["num_device_free"] = stats.num_device_free;
  out["allocation"] = array(stats.allocation);
  out["segment"] = array(stats.segment);
  out["active"] = array(stats.active);
  out["inactive_split"] = array(stats.inactive_split);
  out["allocated_bytes"] = array(stats.allocated_bytes);
  out["reserved_bytes"] = array(stats.reserved_bytes);
  out["active_bytes"] = array(stats.active_bytes);
  out["inactive_split_bytes"] = array(stats.inactive_split_bytes);
  out["requested_bytes"] = array(stats.requested_bytes);
  out["oversize_allocations"] = one(stats.oversize_allocations);
  out["oversize_segments"] = one(stats.oversize_segments);
  return out;
}

py::list snapshot() {
  py::list out;
  for (const auto& b : VirtualAllocator::get().snapshot())
    out.append(py::make_tuple(
        b.device, b.stream, b.segment, b.address, b.size, b.requested, b.allocated, b.is_small, describe_line(b.line)));
  return out;
}

py::tuple stream_tuple(const c10::Stream& stream) {
  return py::make_tuple(
      stream.id(), static_cast<int64_t>(stream.device_index()), static_cast<int64_t>(stream.device_type()));
}

// ---- what rules look at ----

py::tuple place_tuple(uint32_t number) {
  const Line& line = known_lines()[number < known_lines().size() ? number : 0];
  return py::make_tuple(line.file, line.line, line.function);
}

py::list lost_gather_list() {
  py::list out;
  for (const LostGather& one : lost_gathers())
    out.append(py::make_tuple(place_tuple(one.gather_line), place_tuple(one.line), one.row));
  return out;
}

py::list mean_loss_list() {
  py::list out;
  for (const MeanLoss& loss : mean_losses())
    out.append(py::make_tuple(loss.num_targets, place_tuple(loss.line), loss.row));
  return out;
}

py::list race_list() {
  py::list out;
  for (const Race& race : races())
    out.append(py::make_tuple(
        static_cast<int>(race.kind), race.earlier, place_tuple(race.earlier_line), race.earlier_stream,
        race.is_earlier_call, race.later, place_tuple(race.later_line), race.later_stream, race.is_later_call));
  return out;
}

template <typename Noted>
py::list noted_list(const std::vector<Noted>& all, int64_t Noted::* amount) {
  py::list out;
  for (const Noted& one : all)
    out.append(py::make_tuple(one.identity, one.*amount, place_tuple(one.line), one.row));
  return out;
}

py::list use_list(const std::unordered_map<uint32_t, LineUse>& uses) {
  py::list out;
  for (const auto& [line, use] : uses)
    out.append(py::make_tuple(place_tuple(line), use.num_bytes, use.num_tensors));
  return out;
}

py::list call_device_list() {
  py::list out;
  for (auto [device, line] : call_devices())
    out.append(py::make_tuple(device, place_tuple(line)));
  return out;
}

py::list host_read_list() {
  Recorder& r = Recorder::get();
  std::lock_guard<std::mutex> lock(r.mutex);
  py::list out;
  for (const HostRead& read : r.host_reads)
    out.append(py::make_tuple(static_cast<int>(read.what), place_tuple(read.line), read.library, read.count));
  return out;
}

// Identities, and outlines.
std::pair<std::vector<Digest>, std::vector<Digest>> identities_of(const std::vector<std::optional<at::Tensor>>& tensors) {
  std::pair<std::vector<Digest>, std::vector<Digest>> out;
  for (const auto& tensor : tensors) {
    Identity identity = tensor ? identity_of(*tensor) : Identity();
    out.first.push_back(identity.exact);
    out.second.push_back(identity.outline);
  }
  return out;
}

using Tensors = std::vector<std::optional<at::Tensor>>;

std::vector<std::tuple<double, uint64_t, uint64_t>> scales_of(const Tensors& tensors) {
  std::vector<std::tuple<double, uint64_t, uint64_t>> out;
  for (const auto& tensor : tensors) {
    GradientScale scale = tensor ? scale_of(*tensor) : GradientScale();
    out.emplace_back(scale.factor, scale.summed_over, scale.summed_again);
  }
  return out;
}

// Where each tensor's memory was asked for, and where it was last written.
py::list places_of(const Tensors& tensors) {
  py::list out;
  for (const auto& tensor : tensors) {
    Block* block = tensor && tensor->is_cuda() ? block_of(*tensor) : nullptr;
    out.append(py::make_tuple(
        place_tuple(block == nullptr ? 0 : block->line), place_tuple(block == nullptr ? 0 : block->written_line)));
  }
  return out;
}

// Where each tensor was last read in a forward pass under `no_grad`.
py::list unrecorded_places_of(const Tensors& tensors) {
  py::list out;
  for (const auto& tensor : tensors)
    out.append(place_tuple(tensor ? unrecorded_line_of(*tensor) : 0));
  return out;
}

// ---- Python called from C++ ----

py::object* limit_callback = nullptr;
py::dict* shape_functions = nullptr;

void at_limit() {
  py::gil_scoped_acquire gil;
  if (limit_callback != nullptr)
    (*limit_callback)();
}

py::object to_python(const c10::IValue& value) {
  if (value.isTensor())
    return value.toTensor().defined() ? py::cast(value.toTensor()) : py::none();
  if (value.isInt())
    return py::int_(value.toInt());
  if (value.isBool())
    return py::bool_(value.toBool());
  if (value.isDouble())
    return py::float_(value.toDouble());
  if (value.isString())
    return py::str(value.toStringRef());
  if (value.isList()) {
    py::list list;
    for (const auto& item : value.toListRef())
      list.append(to_python(item));
    return list;
  }
  return py::none();
}

c10::IValue from_python(const py::handle& object) {
  if (object.is_none())
    return at::Tensor();
  if (py::isinstance<py::list>(object))
    return c10::List<at::Tensor>(py::cast<std::vector<at::Tensor>>(object));
  if (py::isinstance<py::int_>(object))
    return py::cast<int64_t>(object);
  return py::cast<at::Tensor>(object);
}

bool call_shape_function(const std::string& name, torch::jit::Stack& stack, const c10::OperatorHandle& op) {
  if (shape_functions == nullptr)
    return false;
  py::gil_scoped_acquire gil;
  if (!shape_functions->contains(name))
    return false;
  py::tuple arguments(stack.size());
  for (size_t i = 0; i < stack.size(); ++i)
    arguments[i] = to_python(stack[i]);
  py::object result = (*shape_functions)[py::str(name)](*arguments);
  stack.clear();
  size_t num_returns = op.schema().returns().size();
  if (num_returns == 1)
    stack.push_back(from_python(result));
  for (size_t i = 0; num_returns > 1 && i < num_returns; ++i)
    stack.push_back(from_python(py::cast<py::tuple>(result)[i]));
  return true;
}

py::object to_bytes(const Payload& payload) {
  return payload ? py::object(py::bytes(*payload)) : py::object(py::none());
}

Payload from_bytes(const py::handle& object) {
  return object.is_none() ? Payload() : Payload(py::cast<std::string>(py::reinterpret_borrow<py::bytes>(object)));
}

py::tuple key_tuple(const CallKey& key) {
  std::string file;
  int line = 0;
  if (key.line < known_lines().size()) {
    file = known_lines()[key.line].file;
    line = known_lines()[key.line].line;
  }
  return py::make_tuple(key.group, key.seq, key.op, key.dtype, key.num_bytes, file, line, key.peer, key.tag);
}

// The channel lives in Python. The callables are kept for the life of the process.
void set_wire(const py::object& exchange) {
  auto* target = new py::object(exchange);
  wire().gather = [target](const CallKey& key, const Payload& payload) {
    py::gil_scoped_acquire gil;
    py::tuple reply = target->attr("gather")(key_tuple(key), to_bytes(payload));
    Gathered gathered;
    for (const auto& entry : reply[0])
      gathered.table.push_back(from_bytes(entry));
    std::string_view sources = py::cast<std::string_view>(reply[1]);
    gathered.sources.resize(sources.size() / sizeof(int32_t));
    std::memcpy(gathered.sources.data(), sources.data(), sources.size());
    return gathered;
  };
  wire().post = [target](const CallKey& key, const Payload& payload) {
    py::gil_scoped_acquire gil;
    target->attr("post")(key_tuple(key), to_bytes(payload));
  };
  wire().send = [target](const CallKey& key, const Payload& payload) {
    py::gil_scoped_acquire gil;
    target->attr("send")(key_tuple(key), to_bytes(payload));
  };
  wire().receive = [target](const CallKey& key) {
    py::gil_scoped_acquire gil;
    return from_bytes(target->attr("receive")(key_tuple(key)));
  };
  wire().announce_peer = [target](int group, int peer) {
    py::gil_scoped_acquire gil;
    target->attr("announce_peer")(group, peer);
  };
}

py::tuple notes_as_bytes() {
  auto [texts, rows] = take_notes();
  return py::make_tuple(texts, py::bytes(reinterpret_cast<const char*>(rows.data()), rows.size() * sizeof(int64_t)));
}

// `inputs` decides what comes onto the card in place of the script's own; it is kept for the life of the process.
void keep_values(const py::object& inputs) {
  auto* target = new py::object(inputs);
  InputFunctions functions;
  functions.copy = [target](const at::Tensor& to, const at::Tensor& from) {
    py::gil_scoped_acquire gil;
    py::object taken = target->attr("copy")(to, from);
    return taken.is_none() ? at::Tensor() : py::cast<at::Tensor>(taken);
  };
  functions.draw = [target](const std::string& name, at::IntArrayRef sizes, uint64_t seed) {
    py::gil_scoped_acquire gil;
    auto [dim, seeds] = py::cast<std::pair<int64_t, std::vector<uint64_t>>>(
        target->attr("draw")(name, std::vector<int64_t>(sizes.begin(), sizes.end()), seed));
    return Draws{dim, std::move(seeds)};
  };
  keep_real_values(std::move(functions));
}

py::list unknown_list() {
  py::list out;
  for (const auto& [name, line] : unknown_results())
    out.append(py::make_tuple(name, place_tuple(line)));
  return out;
}

void resize_storage(const py::object& storage, size_t num_bytes) {
  c10::Storage unpacked = THPStorage_Unpack(storage.ptr());
  if (num_bytes == unpacked.nbytes())
    return;
  auto* impl = unpacked.unsafeGetStorageImpl();
  impl->set_data_ptr(VirtualAllocator::get().allocate_on(unpacked.device().index(), num_bytes));
  impl->set_nbytes(num_bytes);
}

using Options = VirtualGroup::Options;

template <typename Class>
void bind_options(Class& cls, const char* name) {
  cls.def(py::init([name](bool high_priority) {
            auto options = c10::make_intrusive<Options>(name);
            options->is_high_priority_stream = high_priority;
            return options;
          }),
          py::arg("is_high_priority_stream") = false)
      .def_readwrite("is_high_priority_stream", &Options::is_high_priority_stream)
      .def_readwrite("split_from", &Options::split_from)
      .def_readwrite("split_color", &Options::split_color)
      .def_readwrite("global_ranks_in_group", &Options::global_ranks_in_group)
      .def_readwrite("group_name", &Options::group_name)
      .def_readwrite("group_desc", &Options::group_desc)
      .def_readonly("backend", &Options::backend)
      .def_readwrite("_timeout", &Options::timeout)
      .def("__copy__", [](const Options& self) { return c10::make_intrusive<Options>(self); })
      .def("__deepcopy__", [](const Options& self, const py::object&) { return c10::make_intrusive<Options>(self); });
}

template <typename Group>
auto bind_nccl(py::module_& m, const char* name) {
  py::class_<Group, VirtualGroup, c10::intrusive_ptr<Group>> cls(m, name);
  cls.def(py::init([](const py::object&, int rank, int size, c10::intrusive_ptr<Options> options, const py::object&) {
            return c10::make_intrusive<Group>(rank, size, std::move(options));
          }),
          py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("options"), py::arg("device") = py::none())
      .def_property_readonly("options", [](Group& self) {
        return c10::static_intrusive_pointer_cast<Options>(self.getBackendOptions());
      });
  return cls;
}

void bind_groups(py::module_& m) {
  using intrusive = c10::intrusive_ptr<VirtualGroup>;
  py::class_<VirtualGroup, c10d::Backend, intrusive> base(m, "VirtualGroup");
  base.def("comm_split_count", [](const VirtualGroup& self) { return self.split_count; })
      .def("perform_nocolor_split", [](VirtualGroup& self, const py::object&) { ++self.split_count; })
      .def("_set_default_timeout", &VirtualGroup::setTimeout)
      .def("_add_ephemeral_timeout", [](VirtualGroup&, const py::object&) {})
      .def("_verify_work_timeout", [](VirtualGroup&, const py::object&, const py::object&) { return true; })
      .def("_is_initialized", [](VirtualGroup&) { return true; })
      .def("register_mem_pool", [](VirtualGroup&, const py::args&, const py::kwargs&) {})
      .def("deregister_mem_pool", [](VirtualGroup&, const py::args&, const py::kwargs&) {})
      .def("_group_start", [](VirtualGroup&) {})
      .def("_group_end", [](VirtualGroup&) {})
      .def("abort", [](VirtualGroup&) {})
      .def("_shutdown", [](VirtualGroup&) {})
      .def_property_readonly("uid", [](VirtualGroup&) { return std::string(); })
      .def_property("bound_device_id", [](VirtualGroup&) { return py::none(); }, [](VirtualGroup&, const py::object&) {});

  auto nccl = bind_nccl<NcclGroup>(m, "ProcessGroupNCCL");
  py::class_<Options, c10d::Backend::Options, c10::intrusive_ptr<Options>> options(nccl, "Options");
  bind_options(options, "nccl");
  bind_nccl<Nccl2Group>(m, "ProcessGroupNCCL2");
  bind_nccl<NcclLazyGroup>(m, "ProcessGroupNCCLLazy");

  py::class_<GlooGroup, VirtualGroup, c10::intrusive_ptr<GlooGroup>> gloo(m, "ProcessGroupGloo");
  gloo.def(py::init([](const py::object&, int rank, int size, const py::object&, bool) {
             return c10::make_intrusive<GlooGroup>(rank, size, c10::make_intrusive<Options>("gloo"));
           }),
           py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout") = py::none(),
           py::arg("enable_reconfigure") = false)
      .def_property_readonly("options", [](GlooGroup& self) {
        return c10::static_intrusive_pointer_cast<Options>(self.getBackendOptions());
      });
}

} // namespace

PYBIND11_MODULE(sandtable_core, m) {
  m.def("configure", [](int num_devices, size_t capacity, size_t context, int capability) {
    Recorder::get().set_main_thread();
    set_device_count(num_devices);
    VirtualAllocator::get().configure(num_devices, capacity, context);
    set_capability(capability);
  });
  m.def("register_fork_handler", [] { torch::utils::register_fork_handler_for_device_init(at::kCUDA); });
  m.attr("ROTATION_TAG") = kRotationTag;
  m.def("device_count", &device_count);
  m.def("current_device", &current_device);
  m.def("set_device", &set_current_device);
  m.def("current_stream", [](int device) { return stream_tuple(current_c10_stream(device)); });
  m.def("set_stream", [](int64_t id, int64_t device, int64_t type) {
    set_current_device(static_cast<int>(device));
    set_current_stream(c10::Stream::unpack3(id, static_cast<c10::DeviceIndex>(device), static_cast<c10::DeviceType>(type)));
  }, py::arg("stream_id"), py::arg("device_index"), py::arg("device_type"));
  m.def("pool_stream", [](int device, int priority) { return stream_tuple(pool_stream(device, priority)); });
  m.def("synchronize", [] { Recorder::get().host_sync(Sync::kDevice, 0); });
  m.def("default_generator", [](int device) {
    return py::reinterpret_steal<py::object>(THPGenerator_initDefaultGenerator(default_generator(device)));
  });

  m.def("memory_stats", &memory_stats);
  m.def("memory_peaks", [](int device) {
    Peaks peaks = VirtualAllocator::get().peaks(device);
    return std::make_tuple(peaks.allocated, peaks.reserved, peaks.num_ooms);
  });
  m.def("memory_snapshot", &snapshot);
  m.def("memory_info", [](int device) { return VirtualAllocator::get().getMemoryInfo(static_cast<c10::DeviceIndex>(device)); });
  m.def("empty_cache", [] { VirtualAllocator::get().emptyCache(); });
  m.def("reset_peak", [](int device) { VirtualAllocator::get().resetPeakStats(static_cast<c10::DeviceIndex>(device)); });
  m.def("reset_accumulated", [](int device) { VirtualAllocator::get().resetAccumulatedStats(static_cast<c10::DeviceIndex>(device)); });
  m.def("set_memory_fraction", [](double fraction, int device) { VirtualAllocator::get().card(device).fraction = fraction; });
  m.def("memory_fraction", [](int device) { return VirtualAllocator::get().card(device).fraction; });
  m.def("resize_storage", &resize_storage);
  m.def("has_exact_value", [](const at::Tensor& tensor) { return !tensor.is_cuda() || is_exact(tensor); });

  m.def("set_routing", [](const std::string& name, double zipf, std::vector<std::vector<double>> weights) {
    set_routing({name, zipf, std::move(weights)});
  });
  m.def("set_routing_layer", &set_routing_layer);
  m.def("facts", [](const at::Tensor& tensor) {
    Facts facts = facts_of(tensor);
    return std::make_tuple(facts.low, facts.high, facts.may_be_nan, facts.total);
  });

  m.def("records", &records);
  m.def("calls", &calls);
  m.def("num_calls", [] { return call_table().op.size(); });
  m.def("lines", &line_list);
  m.def("notes", &note_list);
  m.def("signatures", [] { return Recorder::get().signatures; });
  m.def("num_operators", [] { return Recorder::get().num_operators(); });
  m.def("num_inferences", &num_inferences);
  m.def("set_recording", [](bool on) { Recorder::get().set_recording(on); });
  m.def("set_compiling", [](bool on) { Recorder::get().set_compiling(on); });
  m.def("is_compiling", [] { return Recorder::get().compiling(); });
  m.def("set_launch", [](int64_t launch) {
    auto before = static_cast<int64_t>(Recorder::get().launch());
    Recorder::get().set_launch(static_cast<Launch>(launch));
    return before;
  });
  m.def("begin_graph", &begin_graph);
  m.def("end_graph", &end_graph);
  m.def("is_capturing", &capturing);
  m.def("replay_graph", &replay_graph);
  m.def("begin_pool", [](int device, c10::MempoolId_t pool) { VirtualAllocator::get().begin_pool(device, pool); });
  m.def("end_pool", [](int device, c10::MempoolId_t pool) { VirtualAllocator::get().end_pool(device, pool); });
  m.def("share_pool", [](int device, c10::MempoolId_t pool) { VirtualAllocator::get().share_pool(device, pool); });
  m.def("leave_pool", [](int device, c10::MempoolId_t pool) { VirtualAllocator::get().leave_pool(device, pool); });
  m.def("pool_users", [](int device, c10::MempoolId_t pool) { return VirtualAllocator::get().pool_users(device, pool); });
  m.def("set_optimizer", [](bool inside) { Recorder::get().set_optimizer(inside); });
  m.def("set_backward", [](bool inside) { Recorder::get().set_backward(inside); });
  m.def("submit_job", [] { return Recorder::get().submit_job(); });
  m.def("begin_job", [](uint32_t number) { Recorder::get().begin_job(number); });
  m.def("end_job", [](uint32_t number) { Recorder::get().end_job(number); });
  m.def("join_job", [](uint32_t number) { Recorder::get().join_job(number); });
  m.def("share_waits", [](uint32_t earlier) { return Recorder::get().share_waits(earlier); });
  m.def("take_waits", [](uint32_t number) { Recorder::get().take_waits(number); });
  m.def("gather_waits", [] { Recorder::get().gather_waits(); });
  m.def("begin_function", &begin_function);
  m.def("end_function", &end_function);
  m.def("end_update", [](uint32_t updater) { Recorder::get().end_update(updater, 0); });
  m.def("watch_returns", &watch_returns);
  m.def("watch_audit_events", &watch_audit_events);
  m.def("watch_parameters", &watch_parameters);
  m.def("begin_backward", &begin_backward);
  m.def("mark_parameter", &mark_parameter);
  m.def("take_update", &take_update);
  m.def("num_backwards", &num_backwards);
  m.def("record_kernel", [](
      const std::string& name, const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs,
      const std::string& work) { record_kernel(name, inputs, outputs, work); });
  m.def("note", [](const std::string& kind, const std::string& text) {
    Recorder::get().note(kind, text, current_place().line);
  });
  m.def("set_library_prefixes", &set_library_prefixes);
  m.def("current_place", [] { return place_tuple(current_place().line); });
  m.def("num_rows", [] { return Recorder::get().num_rows(); });
  m.def("follow_identities", &follow_identities);
  m.def("follow_races", &follow_races);
  m.def("identities_of", &identities_of);
  m.def("scales_of", &scales_of);
  m.def("places_of", &places_of);
  m.def("small_factors", &small_factors);
  m.def("name_host_numbers", &name_host_numbers);
  m.def("host_copies", [] { return noted_list(host_copies(), &HostCopy::num_bytes); });
  m.def("draws", [] { return noted_list(draws(), &Draw::num_elements); });
  m.def("call_identities", [] { return raw(call_table().identity); });
  m.def("races", &race_list);
  m.def("host_reads_memory", &host_reads_memory);
  m.def("begin_host_view", &begin_host_view);
  m.def("end_host_view", &end_host_view);
  m.def("num_cards", [] { return VirtualAllocator::get().num_cards(); });
  m.def("memory_uses", [](int device) { return use_list(VirtualAllocator::get().uses(device)); });
  m.def("memory_living", [](int device) { return use_list(VirtualAllocator::get().living(device)); });
  m.def("call_devices", &call_device_list);
  m.def("host_reads", &host_read_list);
  m.def("lost_gathers", &lost_gather_list);
  m.def("mean_losses", &mean_loss_list);
  m.def("unrecorded_places_of", &unrecorded_places_of);
  m.def("keep_real_values", &keep_values);
  m.def("unknown_results", &unknown_list);
  m.def("set_operator_limit", [](int64_t limit, const py::object& callback) {
    limit_callback = new py::object(callback);
    set_limit_function(&at_limit);
    Recorder::get().set_operator_limit(limit);
  });
  m.def("register_shape", [](const std::string& name, const py::object& function) {
    if (shape_functions == nullptr) {
      shape_functions = new py::dict();
      set_shape_function(&call_shape_function);
    }
    (*shape_functions)[py::str(name)] = function;
  });
  m.def("set_wire", &set_wire);
  m.def("take_notes", &notes_as_bytes);
  m.def("begin_group", &begin_group);
  m.def("bind_groups", [m]() mutable { bind_groups(m); });
  m.def("register_kernels", &register_kernels);
  m.def("begin_extension", &begin_extension);
  m.def("end_extension", &end_extension);
  m.def("can_use_attention", &can_use_attention);
}
