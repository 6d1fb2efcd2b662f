// What shape comes out? The answer of the Meta device, asked once for each operator, geometry and set of arguments.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <memory>
#include <string>
#include <vector>

#include "exclusions.h"
#include "fact_rules.h"
#include "gradient_scale.h"

namespace sandtable {

struct Geometry {
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int64_t offset = 0;
};

struct Output {
  enum class Kind { kNew, kHost, kArgument, kView, kUndefined } kind = Kind::kUndefined;
  int argument = -1; // kArgument, kView: whose storage
  at::ScalarType dtype = at::kFloat;
  Geometry geometry;
  size_t num_bytes = 0;
};

struct Return {
  bool is_list = false;
  bool is_constant = false;
  c10::IValue constant;
  std::vector<Output> outputs;
};

struct Resize { // an out= or in-place argument whose geometry the operator changes
  int argument;
  Geometry geometry;
};

// What is known of an operator once and for all, from its schema.
struct OperatorInfo {
  std::string name;         // aten::add.Tensor
  std::string base;         // aten::add
  size_t num_arguments = 0;
  std::vector<int> returns_argument; // a return: which argument it is or is a view of; -1 none
  std::vector<bool> returns_written;
  std::vector<bool> argument_written;
  std::vector<bool> argument_overwritten; // written without being read: out=, fill_, normal_, ...
  bool is_view = false;
  bool scalars_matter = false; // floating-point arguments decide the shape (arange)
  int deciding_argument = -1;  // the tensor whose values decide the shape (nonzero, unique)
  bool masks_are_indices = false; // boolean masks among the arguments stand for their nonzero positions (index)
  bool any_device = false;     // host tensors may stand beside virtual ones (index)
  int generator = -1;          // the argument that draws random numbers
  bool is_random = false;      // draws them, from that argument or from the card's own generator
  bool is_product = false;     // of matrices: those of float32 may be computed as tf32
  bool is_linalg = false;      // factorisations of stand-ins fail: never computed from them
  int routed_return = -1;      // positions chosen by scores: where these are unknown, the routing decides (topk)
  FactRule fact_rule;
  ExclusionRule exclusion = ExclusionRule::kNone; // rules elements out of later choices (masked_fill)
  uint64_t name_digest = 0;    // of the name, the same in every process
  ScaleRule scale_rule = ScaleRule::kForget;
  bool is_by_item = false;     // item k of each list it makes or writes follows from item k of each list it reads
  bool checks_index = false;   // index_select(self, dim, index): the card would assert on a position out of range
};

struct Plan {
  uint32_t signature = 0;
  std::vector<Return> returns;
  std::vector<Resize> resizes;
};

const OperatorInfo& info_of(const c10::OperatorHandle& op);
const Plan& plan_for(const c10::OperatorHandle& op, const OperatorInfo& info, const torch::jit::Stack& stack);
// A signature for work that has no schema of its own to infer: copies between host and card, and kernels that are not
// torch's. `work` is JSON that says what such a kernel does (sandtable.trace.work), or empty.
uint32_t signature_of(
    const std::string& name,
    at::ArrayRef<at::Tensor> inputs,
    at::ArrayRef<at::Tensor> outputs,
    const std::string& work = "");
int64_t num_inferences();
const std::string& dtype_name(at::ScalarType dtype); // as Python names it: float32, bfloat16, ...

// Calls a shape function registered in Python for an operator that has no Meta kernel; false: there is none.
using ShapeFunction = bool (*)(const std::string& name, torch::jit::Stack& stack, const c10::OperatorHandle& op);
void set_shape_function(ShapeFunction function);

} // namespace sandtable
