#include "nccl.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include <cstring>
#include <map>
#include <mutex>

#include "device.h"
#include "recorder.h"
#include "shapes.h"
#include "values.h"

namespace sandtable {
namespace {

using c10d::ReduceOp;
using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

int pending_index = 0;
std::vector<int64_t> pending_ranks;
uint32_t next_batch = 1;
std::mutex table_mutex;
std::map<int, uint32_t> collective_seq;                          // by group; its CPU and CUDA backends share it
std::map<std::tuple<int, int, bool, int>, uint32_t> peer_seq;    // by group, peer, direction and tag
std::set<std::pair<int, int>> announced_peers;
std::atomic<uint32_t> next_fence{0x80000000u};                   // events that belong to the library

template <typename List>
uint16_t intern(List& list, const std::string& text) {
  for (size_t i = 0; i < list.size(); ++i)
    if (list[i] == text)
      return static_cast<uint16_t>(i);
  list.push_back(text);
  return static_cast<uint16_t>(list.size() - 1);
}

int64_t bytes_of(const Tensors& tensors) {
  int64_t bytes = 0;
  for (const auto& tensor : tensors)
    bytes += tensor.is_sparse() ? tensor._values().nbytes() : tensor.nbytes();
  return bytes;
}

// ---- values ----

bool known(const at::Tensor& tensor) {
  return tensor.is_cuda() ? is_exact(tensor) : tensor.is_cpu() && !tensor.is_sparse();
}

at::Tensor host(const at::Tensor& tensor) {
  return (tensor.is_cuda() ? host_view(tensor) : tensor.detach()).contiguous();
}

// The tensors' bytes, each behind its length.
Payload pack(const Tensors& tensors) {
  std::string packed;
  for (const auto& tensor : tensors) {
    if (!known(tensor))
      return std::nullopt;
    at::Tensor flat = host(tensor);
    int64_t size = flat.nbytes();
    packed.append(reinterpret_cast<const char*>(&size), sizeof(size));
    packed.append(static_cast<const char*>(flat.const_data_ptr()), size);
  }
  return packed;
}

std::vector<std::string_view> unpack(const std::string& packed) {
  std::vector<std::string_view> parts;
  size_t at = 0;
  while (at + sizeof(int64_t) <= packed.size()) {
    int64_t size = 0;
    std::memcpy(&size, packed.data() + at, sizeof(size));
    at += sizeof(size);
    parts.push_back(std::string_view(packed).substr(at, size));
    at += size;
  }
  return parts;
}

at::Tensor as_tensor(std::string_view bytes, const at::Tensor& like) {
  TORCH_CHECK(
      static_cast<int64_t>(bytes.size()) == static_cast<int64_t>(like.nbytes()),
      "a collective needs the same number of bytes from every rank, but one sent ", bytes.size(), " where ",
      like.nbytes(), " were expected");
  auto tensor = at::empty(like.sizes(), like.options().device(at::kCPU).memory_format(at::MemoryFormat::Contiguous));
  std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

void assign(const at::Tensor& target, const std::optional<at::Tensor>& value) {
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below;
  at::Tensor out = target;
  if (target.is_cuda()) {
    if (!value || !set_value(out, *value, true))
      set_stand_in(out, false, 1);
  } else if (value && !target.is_sparse()) {
    out.copy_(*value);
  }
}

void combine(at::Tensor& total, const at::Tensor& other, ReduceOp::RedOpType how) {
  switch (how) {
    case ReduceOp::SUM:
    case ReduceOp::AVG:
    case ReduceOp::PREMUL_SUM:
      total.add_(other);
      break;
    case ReduceOp::PRODUCT:
      total.mul_(other);
      break;
    case ReduceOp::MIN:
      total = at::minimum(total, other);
      break;
    case ReduceOp::MAX:
      total = at::maximum(total, other);
      break;
    case ReduceOp::BAND:
      total = total.bitwise_and(other);
      break;
    case ReduceOp::BOR:
      total = total.bitwise_or(other);
      break;
    case ReduceOp::BXOR:
      total = total.bitwise_xor(other);
      break;
    default:
      break;
  }
}

at::Tensor reduced(const std::vector<std::string_view>& parts, const at::Tensor& like, const ReduceOp& how) {
  at::Tensor total;
  for (const auto& part : parts) {
    at::Tensor value = as_tensor(part, like);
    if (how.op_ == ReduceOp::PREMUL_SUM && how.supplement_) {
      auto* factor = static_cast<c10d::PreMulSumSupplement*>(how.supplement_.get());
      if (factor->tensor_factor.defined() && has_value(factor->tensor_factor))
        value.mul_(host(factor->tensor_factor).item());
      else
        value.mul_(factor->double_factor);
    }
    if (!total.defined())
      total = value;
    else
      combine(total, value, how.op_);
  }
  if (how.op_ == ReduceOp::AVG)
    total = total.div(static_cast<int64_t>(parts.size())).to(like.scalar_type());
  return total;
}

// What comes in over the wire, put into the tensors that wait for it.
void receive_into(const CallKey& key, const Tensors& outputs, bool exchange) {
  Payload got = exchange ? wire().receive(key) : std::nullopt;
  auto parts = got ? unpack(*got) : std::vector<std::string_view>();
  for (size_t i = 0; i < outputs.size(); ++i)
    assign(outputs[i], got ? std::optional<at::Tensor>(as_tensor(parts.at(i), outputs[i])) : std::nullopt);
}

class VirtualWork final : public c10d::Work {
 public:
  VirtualWork(int rank, std::vector<uint32_t> rows, Tensors outputs, std::optional<c10::Stream> stream, int source)
      : Work(rank, c10d::OpType::UNKNOWN),
        rows_(std::move(rows)),
        outputs_(std::move(outputs)),
        stream_(stream),
        source_(source) {}
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  int sourceRank() const override { return source_; }
  Tensors result() override { return outputs_; }
  bool wait(std::chrono::milliseconds) override {
    synchronize();
    return true;
  }
  void blockCurrentStream() override { synchronize(); }
  void synchronize() override {
    if (later_)
      std::exchange(later_, nullptr)();
    if (!stream_) // issued on the script's own stream, or between hosts: nothing is outstanding
      return;
    auto now = current_c10_stream(stream_->device_index());
    for (uint32_t row : rows_)
      Recorder::get().add(Kind::kWait, row, static_cast<uint16_t>(now.id()), 0);
  }
  void abort() override {}
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    if (future_)
      return future_;
    std::vector<c10::Device> devices;
    if (stream_)
      devices.push_back(stream_->device());
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), devices);
    if (!stream_) {
      future_->markCompleted(c10::IValue(outputs_));
      return future_;
    }
    auto before = current_c10_stream(stream_->device_index());
    set_current_stream(*stream_);
    future_->markCompleted(c10::IValue(outputs_));
    set_current_stream(before);
    return future_;
  }
  uint64_t getSequencenumber() const override { return rows_.empty() ? 0 : rows_.front(); }
  float getDuration() const override { return 0; }

  std::vector<uint32_t> rows_;
  Tensors outputs_;
  std::optional<c10::Stream> stream_;
  std::function<void()> later_;

 private:
  int source_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

class VirtualTimer final : public c10d::Timer {
 public:
  explicit VirtualTimer(c10::Device) {}
  std::optional<int64_t> measureDifference(Event start, Event end) override {
    auto from = getTimestamp(start);
    auto to = getTimestamp(end);
    if (!from || !to)
      return std::nullopt;
    return *to - *from;
  }
};

} // namespace

} // namespace sandtable

namespace c10d {
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kCUDA, sandtable::VirtualTimer);
} // namespace c10d

namespace sandtable {

CallTable& call_table() {
  static auto* table = new CallTable();
  return *table;
}

Wire& wire() {
  static auto* wires = new Wire();
  return *wires;
}

void begin_group(int index, std::vector<int64_t> ranks) {
  pending_index = index;
  pending_ranks = std::move(ranks);
}

// Everything about one call that issue() needs.
struct VirtualGroup::Call {
  std::string op;
  Tensors inputs;
  Tensors outputs;
  bool is_async = false;
  std::optional<ReduceOp> reduce;
  int root = -1;      // position of the root in the group
  int peer = -1;      // position of the other side of a point-to-point call
  int tag = 0;
  std::vector<int64_t> input_splits, output_splits;
  Tensors sent;       // what goes over the wire, when it is not `inputs`
};

VirtualGroup::VirtualGroup(int rank, int size, c10::intrusive_ptr<Options> options)
    : Backend(rank, size), options_(std::move(options)), index_(pending_index), ranks_(pending_ranks) {}

uint64_t VirtualGroup::getSequenceNumberForGroup() {
  return collective_seq[index_];
}

c10::intrusive_ptr<c10d::Backend> VirtualGroup::split(
    const c10::intrusive_ptr<c10d::Store>&,
    const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  ++split_count;
  auto mine = std::find(ranks.begin(), ranks.end(), getRank());
  if (mine == ranks.end())
    return {};
  auto copy = c10::make_intrusive<Options>(options_->backend);
  copy->timeout = options->timeout;
  copy->group_name = options->group_name;
  copy->group_desc = options->group_desc;
  for (int rank : ranks)
    copy->global_ranks_in_group.push_back(ranks_.empty() ? rank : ranks_[rank]);
  // Only NCCL's groups say that they can be split.
  return c10::make_intrusive<NcclGroup>(
      static_cast<int>(mine - ranks.begin()), static_cast<int>(ranks.size()), copy);
}

void VirtualGroup::startCoalescing() {
  batch_ = next_batch++;
  batched_.clear();
}

WorkPtr VirtualGroup::endCoalescing() {
  for (const auto& receive : std::exchange(batched_receives_, {}))
    receive();
  std::vector<uint32_t> rows;
  Tensors outputs;
  std::optional<c10::Stream> stream;
  for (const auto& work : batched_) {
    auto* part = static_cast<VirtualWork*>(work.get());
    rows.insert(rows.end(), part->rows_.begin(), part->rows_.end());
    outputs.insert(outputs.end(), part->outputs_.begin(), part->outputs_.end());
    if (part->stream_)
      stream = part->stream_;
  }
  batch_ = 0;
  batched_.clear();
  return c10::make_intrusive<VirtualWork>(getRank(), std::move(rows), std::move(outputs), stream, -1);
}

WorkPtr VirtualGroup::issue(Call call) {
  const Tensors& any = call.inputs.empty() ? call.outputs : call.inputs;
  at::Tensor first = any.empty() ? at::Tensor() : any.front();
  bool on_card = first.defined() ? first.is_cuda() : options_->backend == "nccl";
  int device = first.defined() && first.is_cuda() ? first.device().index() : current_device();
  TORCH_CHECK(
      !first.defined() || first.is_cuda() || options_->backend != "nccl",
      "No backend type associated with device type cpu: NCCL moves CUDA tensors only, but ", call.op,
      " got one on the CPU; move it with .cuda(), or init_process_group(\"cpu:gloo,cuda:nccl\")");
  TORCH_CHECK(
      call.root < getSize() && call.peer < getSize(), call.op, ": the other side must be a rank of the group (0 to ",
      getSize() - 1, "), but got ", std::max(call.root, call.peer));
  bool point_to_point = call.peer >= 0;
  bool separate = on_card && (call.is_async || point_to_point || batch_ != 0);
  std::optional<c10::Stream> stream;
  uint16_t stream_id = static_cast<uint16_t>(on_card ? current_stream(device) : 0);
  Place place = current_place();
  Recorder& recorder = Recorder::get();
  if (separate) {
    stream = library_stream(device, index_);
    uint32_t fence = next_fence++;
    recorder.add(Kind::kEventRecord, fence, stream_id, 0, place.phase, place.line);
    stream_id = static_cast<uint16_t>(stream->id());
    recorder.add(Kind::kEventWait, fence, stream_id, 0, place.phase, place.line);
  }

  CallKey key{index_, 0, call.op, "", 0, place.line, -1, call.tag};
  uint32_t row = 0;
  {
    std::lock_guard<std::mutex> lock(table_mutex);
    CallTable& table = call_table();
    key.seq = point_to_point ? peer_seq[{index_, call.peer, call.op == "send", call.tag}]++ : collective_seq[index_]++;
    key.dtype = first.defined() ? dtype_name(first.scalar_type()) : "";
    int64_t bytes_in = bytes_of(call.inputs);
    int64_t bytes_out = bytes_of(call.outputs);
    // What every member must agree on: -1 where sizes may differ from rank to rank.
    bool uneven = !call.input_splits.empty() || !call.output_splits.empty();
    if (call.op == "all_gather" && call.outputs.size() > 1)
      for (const auto& output : call.outputs)
        uneven |= output.numel() != call.inputs.front().numel();
    if (call.op == "all_to_all" && call.inputs.size() > 1)
      uneven = true;
    key.num_bytes = uneven ? -1 : point_to_point ? std::max(bytes_in, bytes_out) : call.op == "scatter" ? bytes_out : bytes_in;
    row = static_cast<uint32_t>(table.op.size());
    table.op.push_back(intern(table.ops, call.op));
    table.group.push_back(static_cast<uint16_t>(index_));
    table.seq.push_back(key.seq);
    table.dtype.push_back(intern(table.dtypes, key.dtype));
    table.bytes_in.push_back(bytes_in);
    table.bytes_out.push_back(bytes_out);
    table.peer.push_back(point_to_point ? (call.peer - getRank() + getSize()) % getSize() : call.root);
    table.stream.push_back(stream_id);
    table.line.push_back(place.line);
    table.is_async.push_back(call.is_async);
    table.batch.push_back(batch_);
    table.reduce.push_back(call.reduce ? 1 + static_cast<uint8_t>(call.reduce->op_) : 0);
    uint32_t splits = 0;
    if (!call.input_splits.empty() || !call.output_splits.empty()) {
      splits = static_cast<uint32_t>(table.split_lists.size());
      table.split_lists.emplace_back(call.input_splits, call.output_splits);
    }
    table.splits.push_back(splits);
    recorder.add(Kind::kCollective, row, stream_id, 0, place.phase, place.line);
  }

  if (point_to_point) {
    int global = ranks_.empty() ? call.peer : static_cast<int>(ranks_[call.peer]);
    key.peer = global;
    if (wire().announce_peer && announced_peers.insert({index_, global}).second)
      wire().announce_peer(index_, global);
  }
  // The rule must hold alike on every rank, so it looks at sizes only.
  bool exchange = wire().gather && (!on_card || !first.defined() ||
                                     key.num_bytes <= static_cast<int64_t>(shadow_limit(first.scalar_type())));
  if (!exchange && !point_to_point && wire().note)
    wire().note(key);
  const Tensors& sent = call.sent.empty() ? call.inputs : call.sent;
  int64_t size = getSize();

  std::function<void()> later;
  if (point_to_point) {
    if (call.op == "send") {
      if (exchange)
        wire().send(key, pack(sent));
    } else {
      auto receive = [key, outputs = call.outputs, exchange] { receive_into(key, outputs, exchange); };
      if (batch_ != 0)
        batched_receives_.push_back(receive);
      else if (on_card)
        receive();
      else
        later = receive; // gloo receives when it is waited for
    }
  } else {
    std::vector<Payload> payloads;
    bool complete = exchange;
    if (exchange) {
      // On a rooted collective only the root's value counts.
      bool matters = call.op != "broadcast" && call.op != "scatter";
      payloads = wire().gather(key, matters || getRank() == call.root ? pack(sent) : Payload(std::string()));
      for (size_t i = 0; i < payloads.size(); ++i)
        complete &= payloads[i].has_value() || (!matters && static_cast<int>(i) != call.root);
      complete &= static_cast<int64_t>(payloads.size()) == size;
    }
    if (!complete) {
      for (const auto& output : call.outputs)
        if (!(call.op == "broadcast" && getRank() == call.root))
          assign(output, std::nullopt);
    } else if (call.op == "all_reduce" || (call.op == "reduce" && getRank() == call.root)) {
      for (size_t i = 0; i < call.outputs.size(); ++i) {
        std::vector<std::string_view> parts;
        for (const auto& payload : payloads)
          parts.push_back(unpack(*payload).at(i));
        assign(call.outputs[i], reduced(parts, call.outputs[i], *call.reduce));
      }
    } else if (call.op == "broadcast") {
      auto parts = unpack(*payloads[call.root]);
      for (size_t i = 0; i < call.outputs.size() && getRank() != call.root; ++i)
        assign(call.outputs[i], as_tensor(parts.at(i), call.outputs[i]));
    } else if (call.op == "all_gather" || (call.op == "gather" && getRank() == call.root)) {
      if (call.outputs.size() == 1 && size > 1 && call.outputs[0].numel() == size * call.inputs[0].numel()) {
        std::string all;
        for (const auto& payload : payloads)
          all += unpack(*payload).at(0);
        assign(call.outputs[0], as_tensor(all, call.outputs[0]));
      } else {
        for (size_t i = 0; i < call.outputs.size(); ++i)
          assign(call.outputs[i], as_tensor(unpack(*payloads[i]).at(0), call.outputs[i]));
      }
    } else if (call.op == "scatter") {
      auto parts = unpack(*payloads[call.root]);
      assign(call.outputs[0], as_tensor(parts.at(getRank()), call.outputs[0]));
    } else if (call.op == "reduce_scatter") {
      std::vector<std::string_view> parts;
      for (const auto& payload : payloads) {
        auto chunks = unpack(*payload);
        size_t bytes = call.outputs[0].nbytes();
        parts.push_back(
            chunks.size() == 1 ? chunks[0].substr(getRank() * bytes, bytes) : chunks.at(getRank()));
      }
      assign(call.outputs[0], reduced(parts, call.outputs[0], *call.reduce));
    } else if (call.op == "all_to_all") {
      std::vector<std::string_view> parts;
      for (const auto& payload : payloads)
        parts.push_back(unpack(*payload).at(getRank()));
      if (static_cast<int64_t>(call.outputs.size()) == size) {
        for (size_t i = 0; i < call.outputs.size(); ++i)
          assign(call.outputs[i], as_tensor(parts[i], call.outputs[i]));
      } else {
        std::string all;
        for (const auto& part : parts)
          all += part;
        assign(call.outputs[0], as_tensor(all, call.outputs[0]));
      }
    }
  }
  auto work = c10::make_intrusive<VirtualWork>(
      getRank(), std::vector<uint32_t>{row}, call.outputs, stream, point_to_point ? call.peer : -1);
  work->later_ = std::move(later);
  if (batch_ != 0)
    batched_.push_back(work);
  return work;
}

WorkPtr VirtualGroup::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  return issue(
      {.op = "broadcast", .inputs = tensors, .outputs = tensors, .is_async = options.asyncOp,
       .root = static_cast<int>(options.rootRank)});
}

WorkPtr VirtualGroup::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  return issue(
      {.op = "all_reduce", .inputs = tensors, .outputs = tensors, .is_async = options.asyncOp,
       .reduce = options.reduceOp});
}

WorkPtr VirtualGroup::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
  return allreduce(tensors, options);
}

WorkPtr VirtualGroup::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  return allreduce(tensors, options);
}

WorkPtr VirtualGroup::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  return issue(
      {.op = "reduce", .inputs = tensors, .outputs = tensors, .is_async = options.asyncOp,
       .reduce = options.reduceOp, .root = static_cast<int>(options.rootRank)});
}

WorkPtr VirtualGroup::allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  return issue({.op = "all_gather", .inputs = inputs, .outputs = outputs.at(0), .is_async = options.asyncOp});
}

WorkPtr VirtualGroup::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
  TORCH_CHECK(
      output.numel() == input.numel() * getSize(), "output tensor size must be equal to world_size times input tensor ",
      "size, but got ", output.numel(), " for ", getSize(), " ranks of ", input.numel());
  return issue({.op = "all_gather", .inputs = {input}, .outputs = {output}, .is_async = options.asyncOp});
}

WorkPtr VirtualGroup::allgather_coalesced(
    std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  startCoalescing();
  for (size_t i = 0; i < inputs.size(); ++i) {
    Tensors mine;
    for (auto& list : outputs)
      mine.push_back(list.at(i));
    issue({.op = "all_gather", .inputs = {inputs[i]}, .outputs = mine, .is_async = options.asyncOp});
  }
  return endCoalescing();
}

WorkPtr VirtualGroup::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  startCoalescing();
  for (size_t i = 0; i < inputs.size(); ++i)
    issue({.op = "all_gather", .inputs = {inputs[i]}, .outputs = {outputs[i]}, .is_async = options.asyncOp});
  return endCoalescing();
}

WorkPtr VirtualGroup::gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  Tensors mine;
  if (!outputs.empty())
    mine = outputs.at(0);
  return issue(
      {.op = "gather", .inputs = inputs, .outputs = mine, .is_async = options.asyncOp,
       .root = static_cast<int>(options.rootRank)});
}

WorkPtr VirtualGroup::scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) {
  Tensors all;
  if (!inputs.empty())
    all = inputs.at(0);
  return issue(
      {.op = "scatter", .inputs = all, .outputs = outputs, .is_async = options.asyncOp,
       .root = static_cast<int>(options.rootRank)});
}

WorkPtr VirtualGroup::reduce_scatter(
    Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& options) {
  return issue(
      {.op = "reduce_scatter", .inputs = inputs.at(0), .outputs = outputs, .is_async = options.asyncOp,
       .reduce = options.reduceOp});
}

WorkPtr VirtualGroup::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK(
      input.numel() == output.numel() * getSize(), "input tensor must be the same size as output size times world size, ",
      "but got ", input.numel(), " for ", getSize(), " ranks of ", output.numel());
  return issue(
      {.op = "reduce_scatter", .inputs = {input}, .outputs = {output}, .is_async = options.asyncOp,
       .reduce = options.reduceOp});
}

WorkPtr VirtualGroup::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  startCoalescing();
  for (size_t i = 0; i < inputs.size(); ++i)
    issue(
        {.op = "reduce_scatter", .inputs = {inputs[i]}, .outputs = {outputs[i]}, .is_async = options.asyncOp,
         .reduce = options.reduceOp});
  return endCoalescing();
}

WorkPtr VirtualGroup::alltoall_base(
    at::Tensor& output,
    at::Tensor& input,
    std::vector<int64_t>& output_splits,
    std::vector<int64_t>& input_splits,
    const c10d::AllToAllOptions& options) {
  Tensors parts;
  if (known(input)) { // cut the input along its first dimension, one piece a receiver
    int64_t start = 0;
    for (int i = 0; i < getSize(); ++i) {
      int64_t rows = input_splits.empty() ? input.size(0) / getSize() : input_splits[i];
      parts.push_back(host(input).narrow(0, start, rows));
      start += rows;
    }
  }
  return issue(
      {.op = "all_to_all", .inputs = {input}, .outputs = {output}, .is_async = options.asyncOp,
       .input_splits = input_splits, .output_splits = output_splits, .sent = parts});
}

WorkPtr VirtualGroup::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  return issue({.op = "all_to_all", .inputs = inputs, .outputs = outputs, .is_async = options.asyncOp});
}

WorkPtr VirtualGroup::send(Tensors& tensors, int to, int tag) {
  return issue({.op = "send", .inputs = tensors, .peer = to, .tag = tag});
}

WorkPtr VirtualGroup::recv(Tensors& tensors, int from, int tag) {
  return issue({.op = "recv", .outputs = tensors, .peer = from, .tag = tag});
}

WorkPtr VirtualGroup::recvAnysource(Tensors& tensors, int tag) {
  TORCH_CHECK(
      getSize() == 2, "recv from any source needs to know who sends: give src, or use a group of two (", getSize(),
      " ranks here)");
  return recv(tensors, 1 - getRank(), tag);
}

WorkPtr VirtualGroup::barrier(const c10d::BarrierOptions& options) {
  auto work = issue({.op = "barrier", .is_async = options.asyncOp});
  if (options_->backend == "nccl")
    Recorder::get().host_sync(Sync::kStream, static_cast<uint16_t>(current_stream(current_device())));
  return work;
}

void VirtualGroup::monitoredBarrier(const c10d::BarrierOptions& options, bool) {
  barrier(options);
}

} // namespace sandtable
