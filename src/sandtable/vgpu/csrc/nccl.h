// The NCCL stand-in: a process group that carries nothing, writes down every call, and exchanges small values.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "gradient_scale.h"

namespace sandtable {

// One row a collective or point-to-point call; columns of the trace's `calls` table.
struct CallTable {
  std::vector<uint16_t> op, group, dtype, stream;
  std::vector<uint32_t> seq, line, batch, splits;
  std::vector<int64_t> bytes_in, bytes_out;
  std::vector<int64_t> agreed_bytes; // not a column of the trace: what every member must say, see kPointToPoint
  std::vector<int32_t> peer;
  std::vector<int32_t> other, tag; // not columns of the trace: the other global rank, or the root in the group; else -1
  std::vector<uint8_t> is_async, reduce;
  std::vector<uint8_t> on_card; // not a column of the trace: whether cards or hosts talk
  std::vector<uint64_t> identity; // not a column of the trace: of what went in (identity.h)
  std::vector<std::string> ops, dtypes;
  std::vector<std::pair<std::vector<int64_t>, std::vector<int64_t>>> split_lists{{{}, {}}};
};
CallTable& call_table();
std::map<int, uint32_t> call_devices(); // the line at which each card of this process first took part in a call
// Writes down a call once more, on this stream; `batches` are the numbers that batches of calls got meanwhile.
uint32_t repeat_call(uint32_t row, uint16_t stream, std::unordered_map<uint32_t, uint32_t>& batches);
constexpr int64_t kPointToPoint = -2; // in the place of agreed bytes: no call that all members of a group make

// The calls written down since the last time, so that ranks can be held against each other: texts not told before, and
// rows of kNoteColumns numbers: group, seq, op, dtype, agreed bytes, file, line, the other rank of a message or else -1,
// tag, root or else -1, reduce operator, splits (texts by number). The caller holds the GIL.
constexpr size_t kNoteColumns = 12;
std::pair<std::vector<std::string>, std::vector<int64_t>> take_notes();

// The tag of messages that every rank of the group sends to the rank as far from it, so that the peer does what this rank
// does and need not run.
constexpr int kRotationTag = 1 << 30;

struct CallKey {
  int group;
  uint32_t seq;
  std::string op;
  std::string dtype;
  int64_t num_bytes;
  uint32_t line;
  int peer; // global rank of a point-to-point call, else -1
  int tag;
};

// How values reach other ranks: set from Python, where the channel to the launcher lives.
using Payload = std::optional<std::string>;
// What the members of a group put in: member k gave table[sources[k]]. Few ranks run, so thousands of members share a few
// entries.
struct Gathered {
  std::vector<Payload> table;
  std::vector<int32_t> sources;
};
struct Wire {
  std::function<Gathered(const CallKey&, const Payload&)> gather;
  std::function<void(const CallKey&, const Payload&)> post; // as gather, by a member that needs nobody's value
  std::function<void(const CallKey&, const Payload&)> send;
  std::function<Payload(const CallKey&)> receive;
  std::function<void(int group, int peer)> announce_peer;
};
Wire& wire();

// The group that the next constructed process group stands for.
void begin_group(int index, std::vector<int64_t> ranks);

class VirtualGroup : public c10d::Backend {
 public:
  struct Options : c10d::Backend::Options {
    explicit Options(const std::string& name) : c10d::Backend::Options(name) {}
    bool is_high_priority_stream = false;
    c10::intrusive_ptr<c10d::Backend> split_from;
    int64_t split_color = 0;
  };

  VirtualGroup(int rank, int size, c10::intrusive_ptr<Options> options);

  const std::string getBackendName() const override { return options_->backend; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }
  bool supportsSplitting() const override { return options_->backend == "nccl"; }
  bool supportsCoalescing() const override { return true; }
  bool supportsTimeEstimation() const override { return false; }
  void startCoalescing() override;
  c10::intrusive_ptr<c10d::Work> endCoalescing() override;

  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(
      std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(
      Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(
      at::Tensor& output,
      at::Tensor& input,
      std::vector<int64_t>& output_splits,
      std::vector<int64_t>& input_splits,
      const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all) override;
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override;
  c10::intrusive_ptr<c10d::Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store,
      const std::vector<int>& ranks,
      const c10::intrusive_ptr<c10d::Backend::Options>& options) override;
  void setTimeout(std::chrono::milliseconds timeout) override { options_->timeout = timeout; }
  void eagerConnectSingleDevice(at::Device) override { connect(); }
  c10d::ErrorType getError() override { return c10d::ErrorType::SUCCESS; }

  int split_count = 0;

 protected:
  // Another group of the same library.
  virtual c10::intrusive_ptr<VirtualGroup> alike(int rank, int size, c10::intrusive_ptr<Options> options) const = 0;
  void connect() { is_eager_ = true; }

 private:
  struct Call;
  struct Issued;
  WorkPtr issue(Call call);
  void check(const Call& call) const;
  static void require_contiguous(const Call& call);
  Issued number(const Call& call);
  void record(const Call& call, Issued& issued);
  std::vector<GradientScale> sums_of(const Call& call) const;
  uint64_t identify(const Call& call, const CallKey& key) const;
  c10::Stream stream_for(const Call& call, const Issued& issued) const;
  std::function<void()> exchange_with_peer(const Call& call, Issued& issued);
  void exchange_with_all(const Call& call, const Issued& issued);
  void distribute(const Call& call, const Gathered& gathered) const;

  c10::intrusive_ptr<Options> options_;
  int index_;
  std::vector<int64_t> ranks_;
  bool is_eager_ = false;
  uint32_t batch_ = 0;
  std::vector<WorkPtr> batched_;
  std::vector<std::function<void()>> batched_receives_; // done when the batch is complete: NCCL runs it as one
};

// One class a library, because torch asks which a group is by its Python class.
template <typename Library>
struct GroupOf : VirtualGroup {
  using VirtualGroup::VirtualGroup;
  c10::intrusive_ptr<VirtualGroup> alike(int rank, int size, c10::intrusive_ptr<Options> options) const override {
    return c10::make_intrusive<Library>(rank, size, std::move(options));
  }
};
struct NcclGroup final : GroupOf<NcclGroup> {
  using GroupOf::GroupOf;
};
// From torch 2.14 on: connects all ranks when it is made, unlike the lazy one, which connects pairs like NcclGroup.
struct Nccl2Group final : GroupOf<Nccl2Group> {
  Nccl2Group(int rank, int size, c10::intrusive_ptr<Options> options) : GroupOf(rank, size, std::move(options)) {
    connect();
  }
};
struct NcclLazyGroup final : GroupOf<NcclLazyGroup> {
  using GroupOf::GroupOf;
};
struct GlooGroup final : GroupOf<GlooGroup> {
  using GroupOf::GroupOf;
};

} // namespace sandtable
