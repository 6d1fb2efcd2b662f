// Exclusions: which elements of unknown scores a mask has ruled out.
//
// Routers that choose among a few groups of experts, or a second expert after the first, fill the scores of the others
// with -inf (or 0) before they take the best. Scores are unknown, but the mask follows from an earlier choice (routing.h),
// so its value is there. The elements that it covers are remembered for the storage that they were written to, and the
// next choice leaves them out.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

namespace sandtable {

struct OperatorInfo;

enum class ExclusionRule { kNone, kFill, kWhere, kKeep };
ExclusionRule exclusion_rule(const std::string& base);
// An operator has written `result`: remember what it rules out, or what its first argument had ruled out.
void follow_exclusions(const OperatorInfo& info, const torch::jit::Stack& stack, const at::Tensor& result);
// One tensor was copied to another: what was ruled out there is ruled out here.
void copy_exclusions(const at::Tensor& to, const at::Tensor& from);
// The tensor was overwritten: nothing is ruled out any more.
void forget_exclusions(const at::Tensor& tensor);
// A mask on the host, of the tensor's shape, of elements that must not be chosen; undefined if there is none.
at::Tensor excluded_elements(const at::Tensor& scores);

} // namespace sandtable
