#include "exclusions.h"

#include <atomic>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "shapes.h"
#include "values.h"

namespace sandtable {
namespace {

constexpr size_t kMostExclusions = 256;

std::mutex exclusions_mutex;
std::unordered_map<uint32_t, at::Tensor> excluded_by_block; // by the number of the allocation, which is never used again
std::deque<uint32_t> in_order;
std::atomic<bool> has_exclusions{false}; // read without the lock: most scripts have none

void remember(const at::Tensor& result, const at::Tensor& mask) {
  Block* block = block_of(result);
  if (block == nullptr || result.storage_offset() != 0 || !result.is_contiguous() ||
      static_cast<size_t>(result.numel() * result.element_size()) != result.storage().nbytes())
    return;
  has_exclusions = true;
  if (excluded_by_block.insert_or_assign(block->id, mask.clone(at::MemoryFormat::Contiguous)).second)
    in_order.push_back(block->id);
  if (in_order.size() > kMostExclusions) {
    excluded_by_block.erase(in_order.front());
    in_order.pop_front();
  }
}

at::Tensor recall(const at::Tensor& tensor) {
  Block* block = block_of(tensor);
  auto found = block == nullptr ? excluded_by_block.end() : excluded_by_block.find(block->id);
  bool is_whole = found != excluded_by_block.end() && tensor.is_contiguous() && tensor.numel() == found->second.numel();
  return is_whole ? found->second.view(tensor.sizes()) : at::Tensor();
}

// Is this a number that no score is taken for: -inf, the smallest of its type, or 0 in place of a probability?
bool is_lowest(const c10::IValue& value) {
  if (value.isScalar())
    return value.toScalar().toDouble() <= 0;
  if (!value.isTensor() || !value.toTensor().defined())
    return false;
  const at::Tensor& tensor = value.toTensor();
  if (tensor.is_cpu())
    return tensor.numel() == 1 && tensor.item().toDouble() <= 0;
  if (has_value(tensor) && certainty_of(tensor) != Certainty::kStandIn)
    return host_view(tensor).le(0).all().item().toBool();
  return has_facts(tensor) && facts_of(tensor).high <= 0;
}

at::Tensor known_mask(const at::Tensor& mask, at::IntArrayRef sizes) {
  if (!mask.is_cuda() || !has_value(mask) || certainty_of(mask) == Certainty::kStandIn)
    return {};
  return host_view(mask).to(at::kBool).expand(sizes);
}

bool is_unknown_score(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().is_cuda() && at::isFloatingType(value.toTensor().scalar_type()) &&
      !(has_value(value.toTensor()) && certainty_of(value.toTensor()) != Certainty::kStandIn);
}

at::Tensor with_earlier(const at::Tensor& mask, const c10::IValue& scores) {
  at::Tensor earlier = recall(scores.toTensor());
  return earlier.defined() && earlier.sizes() == mask.sizes() ? mask.logical_or(earlier) : mask;
}

} // namespace

ExclusionRule exclusion_rule(const std::string& base) {
  static const std::unordered_set<std::string> keeping{
      "aten::_softmax", "aten::sigmoid", "aten::add", "aten::mul", "aten::div"};
  if (base == "aten::masked_fill" || base == "aten::masked_fill_")
    return ExclusionRule::kFill;
  if (base == "aten::where")
    return ExclusionRule::kWhere;
  return keeping.count(base) > 0 ? ExclusionRule::kKeep : ExclusionRule::kNone;
}

void follow_exclusions(const OperatorInfo& info, const torch::jit::Stack& stack, const at::Tensor& result) {
  if (info.exclusion == ExclusionRule::kKeep && !has_exclusions)
    return;
  std::lock_guard<std::mutex> lock(exclusions_mutex);
  size_t first = stack.size() - info.num_arguments;
  const c10::IValue& scores = stack[first];
  if (info.exclusion == ExclusionRule::kKeep) {
    at::Tensor mask = scores.isTensor() ? recall(scores.toTensor()) : at::Tensor();
    if (mask.defined() && mask.sizes() == result.sizes())
      remember(result, mask);
    return;
  }
  if (info.num_arguments < 3)
    return;
  const c10::IValue &second = stack[first + 1], &third = stack[first + 2];
  if (info.exclusion == ExclusionRule::kFill) { // masked_fill(scores, mask, number)
    at::Tensor mask = is_lowest(third) ? known_mask(second.toTensor(), result.sizes()) : at::Tensor();
    if (mask.defined() && is_unknown_score(scores))
      remember(result, with_earlier(mask, scores));
    return;
  }
  bool keeps_second = is_unknown_score(second) && is_lowest(third); // where(mask, scores, number), or the other way round
  if (!keeps_second && !(is_unknown_score(third) && is_lowest(second)))
    return;
  at::Tensor mask = known_mask(scores.toTensor(), result.sizes());
  if (mask.defined())
    remember(result, with_earlier(keeps_second ? mask.logical_not() : mask, keeps_second ? second : third));
}

void copy_exclusions(const at::Tensor& to, const at::Tensor& from) {
  if (!has_exclusions || !to.is_cuda())
    return;
  forget_exclusions(to);
  std::lock_guard<std::mutex> lock(exclusions_mutex);
  at::Tensor mask = recall(from);
  if (mask.defined() && mask.sizes() == to.sizes())
    remember(to, mask);
}

void forget_exclusions(const at::Tensor& tensor) {
  if (!has_exclusions)
    return;
  std::lock_guard<std::mutex> lock(exclusions_mutex);
  if (Block* block = block_of(tensor))
    excluded_by_block.erase(block->id);
}

at::Tensor excluded_elements(const at::Tensor& scores) {
  if (!has_exclusions)
    return {};
  std::lock_guard<std::mutex> lock(exclusions_mutex);
  return recall(scores);
}

} // namespace sandtable
