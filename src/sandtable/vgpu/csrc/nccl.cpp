#include "nccl.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>

#include "compatibility.h"
#include "device.h"
#include "gathers.h"
#include "identity.h"
#include "races.h"
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
std::map<int, uint32_t> line_of_device; // where each card first took part in a call
std::map<int, uint32_t> collective_seq;                          // by group; its CPU and CUDA backends share it
std::map<std::tuple<int, int, bool, int>, uint32_t> peer_seq;    // by group, peer, direction and tag
std::set<std::pair<int, int>> announced_peers;
std::map<std::pair<int, int>, int> pair_streams;                 // by group and peer
constexpr int kFirstPairStream = 1024;
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

// What one tensor holds, as it goes over the wire: its value if it has one, else what is known of it.
struct Part {
  Facts facts;
  Certainty certainty = Certainty::kExact;
  std::optional<std::string_view> bytes;
};
using Parts = std::vector<Part>;

struct PartHeader {
  int64_t num_bytes; // -1: no value
  double low, high, total;
  uint8_t certainty, may_be_nan, has_total;
  int8_t dtype;
};

at::Tensor host(const at::Tensor& tensor) {
  return (tensor.is_cuda() ? host_view(tensor) : tensor.detach()).contiguous();
}

// The tensors one behind the other; of parts of a tensor, cut on the host, the whole has the certainty.
std::string pack(const Tensors& tensors, std::optional<Certainty> certainty_of_whole = std::nullopt) {
  std::string packed;
  for (const auto& tensor : tensors) {
    bool known = tensor.is_cuda() ? has_value(tensor) : tensor.is_cpu() && !tensor.is_sparse();
    Certainty certainty = tensor.is_cuda() && known ? certainty_of(tensor) : certainty_of_whole.value_or(Certainty::kExact);
    bool has_more = !(known && certainty == Certainty::kExact) && tensor.is_cuda();
    Facts facts = has_more ? facts_of(tensor) : Facts::presumed(tensor.scalar_type());
    at::Tensor flat = known ? host(tensor) : at::Tensor();
    PartHeader header{};
    header.num_bytes = known ? static_cast<int64_t>(flat.nbytes()) : -1;
    header.low = facts.low;
    header.high = facts.high;
    header.total = facts.total.value_or(0);
    header.certainty = static_cast<uint8_t>(certainty);
    header.may_be_nan = facts.may_be_nan;
    header.has_total = facts.total.has_value();
    header.dtype = static_cast<int8_t>(facts.dtype);
    packed.append(reinterpret_cast<const char*>(&header), sizeof(header));
    if (known)
      packed.append(static_cast<const char*>(flat.const_data_ptr()), header.num_bytes);
  }
  return packed;
}

Parts unpack(const std::string& packed) {
  Parts parts;
  size_t at = 0;
  while (at + sizeof(PartHeader) <= packed.size()) {
    PartHeader header;
    std::memcpy(&header, packed.data() + at, sizeof(header));
    at += sizeof(header);
    Part& part = parts.emplace_back();
    part.facts = {static_cast<at::ScalarType>(header.dtype), header.low, header.high, header.may_be_nan != 0};
    if (header.has_total)
      part.facts.total = header.total;
    part.certainty = static_cast<Certainty>(header.certainty);
    if (header.num_bytes < 0)
      continue;
    part.bytes = std::string_view(packed).substr(at, header.num_bytes);
    at += header.num_bytes;
  }
  return parts;
}

Part unknown_part(at::ScalarType dtype) {
  return {Facts::presumed(dtype), Certainty::kStandIn, std::nullopt};
}

// The value of a part; none if it has none, or if a rank that stands in for another has one of another size.
std::optional<at::Tensor> value_of(const Part& part, const at::Tensor& like) {
  if (!part.bytes)
    return std::nullopt;
  bool fits = static_cast<int64_t>(part.bytes->size()) == static_cast<int64_t>(like.nbytes());
  if (!fits && part.certainty != Certainty::kExact)
    return std::nullopt;
  TORCH_CHECK(
      fits, "a collective needs the same number of bytes from every rank, but one sent ", part.bytes->size(), " where ",
      like.nbytes(), " were expected");
  auto tensor = at::empty(like.sizes(), like.options().device(at::kCPU).memory_format(at::MemoryFormat::Contiguous));
  std::memcpy(tensor.mutable_data_ptr(), part.bytes->data(), part.bytes->size());
  return tensor;
}

Facts facts_of_part(const Part& part, const std::optional<at::Tensor>& value, at::ScalarType dtype) {
  if (value && part.certainty == Certainty::kExact)
    return facts_of(*value);
  return part.facts.dtype == dtype ? part.facts : Facts::presumed(dtype);
}

// What a collective brings.
struct Received {
  std::optional<at::Tensor> value;
  Certainty certainty = Certainty::kExact;
  Facts facts;
};

void assign(const at::Tensor& target, const Received& received) {
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below;
  at::Tensor out = target;
  if (!target.is_cuda()) {
    if (received.value && !target.is_sparse())
      out.copy_(*received.value);
  } else if (received.value && set_value(out, *received.value, received.certainty)) {
    bool is_exact = received.certainty == Certainty::kExact;
    write_facts(out, is_exact ? Facts::presumed(out.scalar_type()) : received.facts);
  } else {
    write_unknown(out, received.facts);
  }
}

void assign(const at::Tensor& target, const Part& part) {
  std::optional<at::Tensor> value = value_of(part, target);
  assign(target, Received{value, part.certainty, facts_of_part(part, value, target.scalar_type())});
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

Facts combined_facts(const Facts& a, const Facts& b, ReduceOp::RedOpType how) {
  at::ScalarType dtype = a.dtype;
  switch (how) {
    case ReduceOp::SUM: {
      Facts sum = sum_of(a, b, dtype);
      if (c10::isIntegralType(dtype, false)) {
        if (a.total && b.total)
          sum.total = *a.total + *b.total;
        return sum;
      }
      // sums of floating-point numbers are rounded on the way: the sign is kept
      Facts rough{dtype, sum.low >= 0 ? 0 : std::min(sum.low, -kLargest), sum.high <= 0 ? 0 : std::max(sum.high, kLargest)};
      rough.may_be_nan = sum.may_be_nan;
      return rough;
    }
    case ReduceOp::MAX:
      return largest_of(a, b, dtype);
    case ReduceOp::MIN:
      return smallest_of(a, b, dtype);
    case ReduceOp::AVG:
      return either(a, b);
    case ReduceOp::BOR:
      return a.is_zero() && b.is_zero() ? a : Facts::presumed(dtype);
    default:
      return Facts::presumed(dtype);
  }
}

Facts reduced_facts(const std::vector<Facts>& facts, const std::vector<int32_t>& sources, ReduceOp::RedOpType how) {
  Facts total = facts.at(sources.at(0));
  for (size_t k = 1; k < sources.size(); ++k)
    total = combined_facts(total, facts.at(sources[k]), how);
  if (how == ReduceOp::AVG && total.low != total.high) // rounded on the way
    total = Facts::within(
        total.low - 0.01 * std::min(std::abs(total.low), 1e300), total.high + 0.01 * std::min(std::abs(total.high), 1e300),
        total.dtype);
  return total;
}

void scale_first(at::Tensor& value, const ReduceOp& how) {
  if (how.op_ != ReduceOp::PREMUL_SUM || !how.supplement_)
    return;
  auto* factor = static_cast<PreMulSumSupplement*>(how.supplement_.get());
  if (factor->tensor_factor.defined() && has_value(factor->tensor_factor))
    value.mul_(host(factor->tensor_factor).item());
  else
    value.mul_(factor->double_factor);
}

// Member k gave parts[sources[k]].
Received reduced(
    const Parts& parts, const std::vector<int32_t>& sources, const at::Tensor& like, const ReduceOp& how) {
  Received received;
  Tensors values;
  std::vector<Facts> facts;
  for (const Part& part : parts)
    received.certainty = std::max(received.certainty, part.bytes ? part.certainty : Certainty::kStandIn);
  for (const Part& part : parts) {
    std::optional<at::Tensor> value = value_of(part, like);
    if (received.certainty != Certainty::kExact)
      facts.push_back(facts_of_part(part, value, like.scalar_type()));
    if (value)
      scale_first(values.emplace_back(*value), how);
  }
  received.facts = facts.empty() ? Facts::presumed(like.scalar_type()) : reduced_facts(facts, sources, how.op_);
  if (values.size() < parts.size())
    return received;
  at::Tensor total = values.at(sources.at(0)).clone();
  for (size_t k = 1; k < sources.size(); ++k)
    combine(total, values.at(sources[k]), how.op_);
  if (how.op_ == ReduceOp::AVG)
    total = total.div(static_cast<int64_t>(sources.size())).to(like.scalar_type());
  received.value = total;
  return received;
}

// One part behind the other, in one tensor.
Received concatenated(const Parts& parts, const at::Tensor& like) {
  Received received;
  std::string all;
  std::optional<Facts> facts;
  bool is_known = true;
  for (const Part& part : parts) {
    is_known &= part.bytes.has_value();
    received.certainty = std::max(received.certainty, part.certainty);
    Facts here = part.facts.dtype == like.scalar_type() ? part.facts : Facts::presumed(like.scalar_type());
    facts = facts ? either(*facts, here) : here;
    if (is_known)
      all += *part.bytes;
  }
  received.facts = facts.value_or(Facts::presumed(like.scalar_type()));
  if (is_known)
    received.value = value_of({received.facts, received.certainty, all}, like);
  return received;
}

bool is_first_with(int group, int peer) {
  std::lock_guard<std::mutex> lock(table_mutex);
  return announced_peers.insert({group, peer}).second;
}

// What comes in over the wire, put into the tensors that wait for it.
void receive_into(const CallKey& key, const Tensors& outputs, bool exchange) {
  Payload got = exchange ? wire().receive(key) : std::nullopt;
  Parts parts = got ? unpack(*got) : Parts();
  for (size_t i = 0; i < outputs.size(); ++i) {
    const at::Tensor& output = outputs[i];
    Part part = got ? parts.at(i) : unknown_part(output.scalar_type());
    bool is_shorter = part.bytes && output.is_cpu() && output.is_contiguous() && part.bytes->size() < output.nbytes();
    if (is_shorter) // what lies behind stays
      std::memcpy(output.mutable_data_ptr(), part.bytes->data(), part.bytes->size());
    else
      assign(output, part);
  }
}

class VirtualWork final : public c10d::Work {
 public:
  VirtualWork(int rank, std::vector<uint32_t> rows, Tensors outputs, std::optional<c10::Stream> stream, int source)
      : Work(rank, c10d::OpType::UNKNOWN),
        rows_(std::move(rows)),
        outputs_(std::move(outputs)),
        stream_(stream),
        source_(source) {}
  bool isCompleted() override {
    for (uint32_t row : rows_)
      host_saw_call(row);
    return true;
  }
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
// A CUDA build has registered its own.
C10_REGISTER_TYPED_CLASS_WITH_PRIORITY(TimerRegistry, c10::kCUDA, c10::REGISTRY_PREFERRED, sandtable::VirtualTimer);
} // namespace c10d

namespace sandtable {

CallTable& call_table() {
  static auto* table = new CallTable();
  return *table;
}

static std::string name_of_reduce(uint8_t number) {
  static const std::array<const char*, 10> names{
      "", "sum", "avg", "prod", "min", "max", "band", "bor", "bxor", "premul_sum"};
  return number < names.size() ? names[number] : "";
}

// "24,8>12,24": rows given to each member, and got from each. Of large groups nothing: it would be long.
static std::string text_of_splits(const std::pair<std::vector<int64_t>, std::vector<int64_t>>& splits) {
  constexpr size_t kMostSplits = 64;
  if (std::max(splits.first.size(), splits.second.size()) > kMostSplits)
    return "";
  std::string text;
  auto add = [&text](const std::vector<int64_t>& list) {
    for (size_t k = 0; k < list.size(); ++k)
      text += (k ? "," : "") + std::to_string(list[k]);
  };
  add(splits.first);
  if (!splits.first.empty() || !splits.second.empty())
    text += ">";
  add(splits.second);
  return text;
}

std::pair<std::vector<std::string>, std::vector<int64_t>> take_notes() {
  static size_t num_taken = 0;
  static std::unordered_map<std::string, int64_t> numbers;
  std::vector<std::string> texts;
  std::vector<int64_t> rows;
  auto number = [&](const std::string& text) {
    auto [found, is_new] = numbers.emplace(text, static_cast<int64_t>(numbers.size()));
    if (is_new)
      texts.push_back(text);
    return found->second;
  };
  std::lock_guard<std::mutex> lock(table_mutex);
  const CallTable& table = call_table();
  const std::vector<Line>& lines = known_lines();
  rows.reserve((table.op.size() - num_taken) * kNoteColumns);
  for (; num_taken < table.op.size(); ++num_taken) {
    size_t i = num_taken;
    bool is_message = table.agreed_bytes[i] == kPointToPoint;
    // Hosts may receive a message into a longer buffer.
    int64_t size_of_message = table.on_card[i] ? std::max(table.bytes_in[i], table.bytes_out[i]) : -1;
    int64_t size = is_message ? size_of_message : table.agreed_bytes[i];
    const Line& line = lines[table.line[i] < lines.size() ? table.line[i] : 0];
    rows.insert(
        rows.end(), {table.group[i], table.seq[i], number(table.ops[table.op[i]]), number(table.dtypes[table.dtype[i]]),
                     size, number(line.file), line.line, is_message ? table.other[i] : -1, table.tag[i],
                     is_message ? -1 : table.other[i], number(name_of_reduce(table.reduce[i])),
                     number(text_of_splits(table.split_lists[table.splits[i]]))});
  }
  return {std::move(texts), std::move(rows)};
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
  std::optional<Certainty> sent_as; // the certainty of what these were cut from

  std::string payload() const { return pack(sent.empty() ? inputs : sent, sent_as); }

  at::Tensor first() const {
    const Tensors& any = inputs.empty() ? outputs : inputs;
    return any.empty() ? at::Tensor() : any.front();
  }
  bool has_splits() const { return !input_splits.empty() || !output_splits.empty(); }

  // The size that every member must agree on: -1 where sizes may differ from rank to rank.
  int64_t agreed_bytes() const {
    bool uneven = has_splits() || (op == "all_to_all" && inputs.size() > 1);
    if (op == "all_gather" && outputs.size() > 1)
      for (const auto& output : outputs)
        uneven |= output.numel() != inputs.front().numel();
    if (uneven)
      return -1;
    return op == "recv" || op == "scatter" ? bytes_of(outputs) : bytes_of(inputs);
  }
};

// What became of it.
struct VirtualGroup::Issued {
  CallKey key;
  std::vector<uint32_t> rows; // empty while it is not written down
  int device = 0;
  bool on_card = true;
  bool exchanges = false;
  std::optional<c10::Stream> stream; // the library's, if it runs there
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
  return alike(static_cast<int>(mine - ranks.begin()), static_cast<int>(ranks.size()), copy);
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

// A call is checked, placed on a stream, written down, and then given the values that are small enough to exist.
WorkPtr VirtualGroup::issue(Call call) {
  check(call);
  Issued issued = number(call);
  std::function<void()> later;
  if (call.peer >= 0) {
    later = exchange_with_peer(call, issued);
  } else {
    record(call, issued);
    exchange_with_all(call, issued);
  }
  // What hosts do is over when it has been waited for: no stream waits for it.
  auto work = c10::make_intrusive<VirtualWork>(
      getRank(), issued.rows, call.outputs, issued.on_card ? issued.stream : std::nullopt, call.peer);
  work->later_ = std::move(later);
  if (batch_ != 0)
    batched_.push_back(work);
  return work;
}

void VirtualGroup::check(const Call& call) const {
  at::Tensor first = call.first();
  TORCH_CHECK(
      !first.defined() || first.is_cuda() || options_->backend != "nccl",
      "No backend type associated with device type cpu: NCCL moves CUDA tensors only, but ", call.op,
      " got one on the CPU; move it with .cuda(), or init_process_group(\"cpu:gloo,cuda:nccl\")");
  TORCH_CHECK(
      call.root < getSize() && call.peer < getSize(), call.op, ": the other side must be a rank of the group (0 to ",
      getSize() - 1, "), but got ", std::max(call.root, call.peer));
  if (options_->backend == "nccl")
    require_contiguous(call);
}

// As NCCL's process group does for what it hands over as it is. Lists are copied from or into one buffer.
void VirtualGroup::require_contiguous(const Call& call) {
  static const std::set<std::string> whole{
      "all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"};
  if (whole.count(call.op) == 0)
    return;
  for (const Tensors* tensors : {&call.inputs, &call.outputs})
    if (tensors->size() == 1)
      TORCH_CHECK_VALUE(
          tensors->front().is_sparse() || tensors->front().is_contiguous(tensors->front().suggest_memory_format()),
          "Tensors must be contiguous");
}

// Routers' choices are positions and masks.
static int64_t most_exchanged(at::ScalarType dtype) {
  bool may_be_routed = dtype == at::kLong || dtype == at::kInt || dtype == at::kBool;
  return static_cast<int64_t>(shadow_limit(dtype, may_be_routed ? Certainty::kRouted : Certainty::kExact));
}

std::map<int, uint32_t> call_devices() {
  std::lock_guard<std::mutex> lock(table_mutex);
  return line_of_device;
}

VirtualGroup::Issued VirtualGroup::number(const Call& call) {
  at::Tensor first = call.first();
  Issued issued;
  issued.on_card = first.defined() ? first.is_cuda() : options_->backend == "nccl";
  issued.device = first.defined() && first.is_cuda() ? first.device().index() : current_device();
  uint32_t line = current_place().line; // before any lock: it may wait for Python's
  if (first.defined() && first.is_cuda() && options_->backend == "nccl") {
    std::lock_guard<std::mutex> lock(table_mutex);
    line_of_device.emplace(issued.device, line);
  }
  bool point_to_point = call.peer >= 0;
  CallKey& key = issued.key;
  key = {index_, 0, call.op, first.defined() ? dtype_name(first.scalar_type()) : std::string(), call.agreed_bytes(),
         line, -1, call.tag};
  if (point_to_point && !issued.on_card)
    key.num_bytes = -1; // hosts may receive into a longer buffer
  if (point_to_point)
    key.peer = ranks_.empty() ? call.peer : static_cast<int>(ranks_[call.peer]);
  // Whether values are exchanged must be decided alike on every rank, so by what all agree on.
  issued.exchanges = wire().gather && (!issued.on_card || !first.defined() || key.num_bytes <= most_exchanged(first.scalar_type()));
  std::lock_guard<std::mutex> lock(table_mutex);
  key.seq = point_to_point ? peer_seq[{index_, call.peer, call.op == "send", call.tag}]++ : collective_seq[index_]++;
  return issued;
}

// NCCL has a stream for each group. Single messages have one for each pair of ranks, unless the group was connected when
// it was made. Messages between hosts have theirs, too: nothing on the card waits for them.
c10::Stream VirtualGroup::stream_for(const Call& call, const Issued& issued) const {
  if (call.peer < 0 || batch_ != 0 || (issued.on_card && is_eager_))
    return library_stream(issued.device, index_);
  std::lock_guard<std::mutex> lock(table_mutex);
  auto [found, _] = pair_streams.emplace(std::pair(index_, call.peer), pair_streams.size());
  return library_stream(issued.device, kFirstPairStream + found->second);
}

// NCCL runs asynchronous and point-to-point calls on a stream of its own, which first waits for the script's.
void VirtualGroup::record(const Call& call, Issued& issued) {
  bool point_to_point = call.peer >= 0;
  uint16_t stream_id = static_cast<uint16_t>(issued.on_card ? current_stream(issued.device) : 0);
  Place place = current_place();
  Recorder& recorder = Recorder::get();
  if (issued.on_card ? call.is_async || point_to_point || batch_ != 0 : point_to_point) {
    issued.stream = stream_for(call, issued);
    uint32_t fence = next_fence++;
    if (issued.on_card)
      recorder.add(Kind::kEventRecord, fence, stream_id, 0, place.phase, place.line);
    stream_id = static_cast<uint16_t>(issued.stream->id());
    if (issued.on_card)
      recorder.add(Kind::kEventWait, fence, stream_id, 0, place.phase, place.line);
  }
  if (call.op == "send")
    recorder.follow_waits(stream_id);
  const CallKey& key = issued.key;
  Digest identity = identify(call, key); // before the lock: it may wait for Python's
  std::lock_guard<std::mutex> lock(table_mutex);
  CallTable& table = call_table();
  uint32_t row = static_cast<uint32_t>(table.op.size());
  issued.rows = {row};
  table.op.push_back(intern(table.ops, call.op));
  table.group.push_back(static_cast<uint16_t>(index_));
  table.seq.push_back(key.seq);
  table.dtype.push_back(intern(table.dtypes, key.dtype));
  table.bytes_in.push_back(bytes_of(call.inputs));
  table.agreed_bytes.push_back(point_to_point ? kPointToPoint : key.num_bytes);
  table.bytes_out.push_back(bytes_of(call.outputs));
  table.peer.push_back(point_to_point ? (call.peer - getRank() + getSize()) % getSize() : call.root);
  table.other.push_back(point_to_point ? key.peer : call.root);
  table.tag.push_back(point_to_point ? key.tag : 0);
  table.stream.push_back(stream_id);
  table.line.push_back(place.line);
  table.is_async.push_back(call.is_async);
  table.batch.push_back(batch_);
  table.reduce.push_back(call.reduce ? 1 + static_cast<uint8_t>(call.reduce->op_) : 0);
  table.splits.push_back(call.has_splits() ? static_cast<uint32_t>(table.split_lists.size()) : 0);
  if (call.has_splits())
    table.split_lists.emplace_back(call.input_splits, call.output_splits);
  table.on_card.push_back(issued.on_card);
  table.identity.push_back(identity);
  recorder.add(Kind::kCollective, row, stream_id, 0, place.phase, place.line);
  if (!issued.on_card || !follows_races())
    return;
  begin_kernel(call.op, stream_id, place.line, /*is_call=*/true);
  for (const at::Tensor& tensor : call.inputs)
    touch(tensor, false);
  for (const at::Tensor& tensor : call.outputs)
    touch(tensor, true);
  end_call(row, stream_id);
}

// The scales of what comes out.
std::vector<GradientScale> VirtualGroup::sums_of(const Call& call) const {
  double factor = 1;
  if (call.reduce && call.reduce->op_ == ReduceOp::AVG)
    factor = 1.0 / getSize();
  else if (call.reduce && call.reduce->op_ == ReduceOp::PREMUL_SUM && call.reduce->supplement_)
    factor = static_cast<PreMulSumSupplement*>(call.reduce->supplement_.get())->double_factor;
  bool is_sum = call.reduce && (factor != 1 || call.reduce->op_ == ReduceOp::SUM || call.reduce->op_ == ReduceOp::AVG);
  std::vector<GradientScale> scales;
  for (size_t k = 0; k < call.outputs.size(); ++k) {
    const at::Tensor& from = call.inputs.empty() ? call.outputs[k] : call.inputs[std::min(k, call.inputs.size() - 1)];
    scales.push_back(is_sum ? summed(scale_of(from), index_, factor) : GradientScale());
  }
  return scales;
}

// Gives what comes out an identity, on all members the same where all get the same; returns that of what goes in.
Digest VirtualGroup::identify(const Call& call, const CallKey& key) const {
  if (!follows_identities())
    return 0;
  if (call.op == "all_gather")
    note_gather(call.inputs, call.outputs);
  Digest op = digest_of(call.op);
  Identity given = same(op);
  for (const at::Tensor& tensor : call.inputs)
    given = mix(given, identity_of(tensor));
  Identity result = same(mix(op, mix(key.seq, mix(static_cast<Digest>(call.tag), static_cast<Digest>(getSize())))));
  for (int64_t rank : ranks_)
    result.exact = mix(result.exact, static_cast<Digest>(rank));
  result.exact = mix(result.exact, digest_of(options_->group_name));
  static const std::set<std::string> alike{"all_reduce", "broadcast", "all_gather"};
  if (call.op == "recv")
    result.exact = mix(result.exact, static_cast<Digest>(key.peer));
  else if (!alike.contains(call.op))
    result = mix(result, static_cast<Digest>(getRank()));
  std::vector<GradientScale> scales = sums_of(call);
  for (size_t k = 0; k < call.outputs.size(); ++k) {
    write_identity(call.outputs[k], mix(result, k));
    write_scale(call.outputs[k], scales[k]);
  }
  return given.exact;
}

uint32_t repeat_call(uint32_t row, uint16_t stream, std::unordered_map<uint32_t, uint32_t>& batches) {
  std::lock_guard<std::mutex> lock(table_mutex);
  CallTable& table = call_table();
  auto again = [row](auto& column) { auto value = column[row]; column.push_back(value); };
  uint32_t seq = table.agreed_bytes[row] == kPointToPoint ? table.seq[row] : collective_seq[table.group[row]]++;
  uint32_t batch = table.batch[row];
  if (batch != 0 && !batches.contains(batch))
    batches[batch] = next_batch++;
  table.seq.push_back(seq);
  table.stream.push_back(stream);
  table.batch.push_back(batch == 0 ? 0 : batches[batch]);
  for (auto* column : {&table.op, &table.group, &table.dtype})
    again(*column);
  for (auto* column : {&table.line, &table.splits})
    again(*column);
  for (auto* column : {&table.bytes_in, &table.bytes_out, &table.agreed_bytes})
    again(*column);
  for (auto* column : {&table.peer, &table.other, &table.tag})
    again(*column);
  again(table.identity);
  again(table.on_card);
  for (auto* column : {&table.is_async, &table.reduce})
    again(*column);
  return static_cast<uint32_t>(table.op.size() - 1);
}

// What is left to do when the work is waited for, if anything.
std::function<void()> VirtualGroup::exchange_with_peer(const Call& call, Issued& issued) {
  const CallKey& key = issued.key;
  if (wire().announce_peer && key.tag != kRotationTag && is_first_with(index_, key.peer))
    wire().announce_peer(index_, key.peer);
  if (batch_ == 0 && !issued.on_card && call.op == "recv") {
    // gloo receives when it is waited for; a thread that waits from the beginning to the end keeps nobody up.
    auto self = c10::intrusive_ptr<VirtualGroup>::unsafe_reclaim_from_nonowning(this);
    return [self, call, issued]() mutable {
      receive_into(issued.key, call.outputs, issued.exchanges);
      self->record(call, issued);
      Recorder::get().host_sync(Sync::kStream, static_cast<uint16_t>(issued.stream->id()));
    };
  }
  record(call, issued);
  if (call.op == "send") {
    if (issued.exchanges)
      wire().send(key, call.payload());
    return {};
  }
  auto receive = [key, outputs = call.outputs, exchanges = issued.exchanges] { receive_into(key, outputs, exchanges); };
  if (batch_ != 0)
    batched_receives_.push_back(receive);
  else
    receive();
  return {};
}

void VirtualGroup::exchange_with_all(const Call& call, const Issued& issued) {
  bool is_root = getRank() == call.root;
  bool gives = call.op == "broadcast" && is_root;
  bool only_root_gets = call.op == "gather" || call.op == "reduce";
  if (issued.exchanges && (gives || (only_root_gets && !is_root))) {
    wire().post(issued.key, call.payload());
    return;
  }
  Gathered gathered;
  if (issued.exchanges) {
    // Of a broadcast or a scatter only the root's value counts.
    bool all_count = call.op != "broadcast" && call.op != "scatter";
    gathered = wire().gather(issued.key, all_count || is_root ? call.payload() : std::string());
  }
  if (static_cast<int>(gathered.sources.size()) == getSize())
    distribute(call, gathered);
  else if (!gives)
    for (const auto& output : call.outputs)
      assign(output, unknown_part(output.scalar_type()));
}

// What all members gave is here: each collective by its definition.
void VirtualGroup::distribute(const Call& call, const Gathered& gathered) const {
  const Tensors& outputs = call.outputs;
  if (outputs.empty())
    return;
  const std::vector<int32_t>& sources = gathered.sources;
  bool is_root = getRank() == call.root;
  std::vector<Parts> entries;
  for (const Payload& payload : gathered.table)
    entries.push_back(payload ? unpack(*payload) : Parts());
  // Part `part` of a member; of a tensor that could not be cut, what is known of the whole.
  auto part_of = [&](const Parts& entry, size_t part) {
    if (part < entry.size())
      return entry[part];
    Part whole = entry.size() == 1 ? entry[0] : unknown_part(outputs[0].scalar_type());
    whole.facts.total.reset();
    whole.bytes.reset();
    return whole;
  };
  auto part_of_each_entry = [&](size_t part) {
    Parts parts;
    for (const auto& entry : entries)
      parts.push_back(part_of(entry, part));
    return parts;
  };
  auto part_of_each = [&](size_t part) {
    Parts by_entry = part_of_each_entry(part), parts;
    for (int32_t source : sources)
      parts.push_back(by_entry.at(source));
    return parts;
  };
  // One output tensor takes the parts one behind the other, several take one each.
  auto spread = [&](const Parts& parts) {
    if (outputs.size() != parts.size())
      assign(outputs[0], concatenated(parts, outputs[0]));
    else
      for (size_t i = 0; i < outputs.size(); ++i)
        assign(outputs[i], parts[i]);
  };
  if (call.op == "all_reduce" || (call.op == "reduce" && is_root)) {
    for (size_t i = 0; i < outputs.size(); ++i)
      assign(outputs[i], reduced(part_of_each_entry(i), sources, outputs[i], *call.reduce));
  } else if (call.op == "broadcast" && !is_root) {
    Parts given;
    for (size_t i = 0; i < outputs.size(); ++i)
      given.push_back(part_of(entries.at(sources.at(call.root)), i));
    spread(given);
  } else if (call.op == "all_gather" || (call.op == "gather" && is_root)) {
    spread(part_of_each(0));
  } else if (call.op == "scatter") {
    spread({part_of(entries.at(sources.at(call.root)), getRank())});
  } else if (call.op == "all_to_all") {
    Parts parts = part_of_each(getRank());
    for (Part& part : parts)
      part.facts.total.reset();
    spread(parts);
  } else if (call.op == "reduce_scatter") {
    Parts mine;
    size_t bytes = outputs[0].nbytes();
    for (const auto& entry : entries) {
      Part& part = mine.emplace_back(part_of(entry, entry.size() == 1 ? 0 : getRank()));
      part.facts.total.reset();
      if (entry.size() == 1 && part.bytes)
        part.bytes = part.bytes->substr(getRank() * bytes, bytes);
    }
    assign(outputs[0], reduced(mine, sources, outputs[0], *call.reduce));
  }
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
  bool is_known = input.is_cuda() ? has_value(input) : input.is_cpu();
  if (is_known) { // cut the input along its first dimension, one piece a receiver
    int64_t start = 0;
    for (int i = 0; i < getSize(); ++i) {
      int64_t rows = input_splits.empty() ? input.size(0) / getSize() : input_splits[i];
      parts.push_back(host(input).narrow(0, start, rows));
      start += rows;
    }
  }
  return issue(
      {.op = "all_to_all", .inputs = {input}, .outputs = {output}, .is_async = options.asyncOp,
       .input_splits = input_splits, .output_splits = output_splits, .sent = parts,
       .sent_as = is_known && input.is_cuda() ? certainty_of(input) : Certainty::kExact});
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
