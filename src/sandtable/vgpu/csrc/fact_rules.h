// Which facts an operator's results have, given those of its arguments: a table with a rule for each operator.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>

#include <string>

#include "facts.h"

namespace sandtable {

struct Output;

// What a rule may ask about the call.
struct FactQuery {
  const c10::FunctionSchema& schema;
  const torch::jit::Stack& stack;
  const Output& result;
  size_t position; // of the result among the operator's

  const c10::IValue& argument(size_t index) const;
  const c10::IValue* named(const char* name) const; // null: no such argument, or none given
  const at::Tensor& tensor(size_t index) const { return argument(index).toTensor(); }
  Facts facts(size_t index) const; // of a tensor or a number
  Facts facts_of_all(size_t index) const; // of a list of tensors
  at::ScalarType dtype() const;
  int64_t numel() const; // of the result
  int64_t reduced() const; // how many elements of the first argument make one of the result
  int64_t options() const; // the size of the dimension that positions count
};

struct FactRule {
  Facts (*infer)(const FactQuery& query) = nullptr;
  bool from_nothing = false; // gives facts where no argument has any
  bool prefers_true = false; // an unknown truth value reads as true: all, ==
};

// The rule of an operator (aten::add, also for aten::add_); one without a function if there is none.
const FactRule& fact_rule(const std::string& base);

} // namespace sandtable
