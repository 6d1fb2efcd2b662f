#include "real_values.h"

#include <algorithm>

#include "recorder.h"

namespace sandtable {
namespace {

bool is_on = false;

InputFunctions& functions_now() {
  static auto* functions = new InputFunctions();
  return *functions;
}

std::vector<std::pair<std::string, uint32_t>>& unknown_now() {
  static auto* unknown = new std::vector<std::pair<std::string, uint32_t>>();
  return *unknown;
}

} // namespace

void keep_real_values(InputFunctions functions) {
  functions_now() = std::move(functions);
  is_on = true;
}

bool keeps_real_values() {
  return is_on;
}

const InputFunctions& input_functions() {
  return functions_now();
}

void note_unknown_result(const std::string& name) {
  auto& unknown = unknown_now();
  if (!is_on || std::any_of(unknown.begin(), unknown.end(), [&](const auto& one) { return one.first == name; }))
    return;
  unknown.emplace_back(name, current_place().line);
}

const std::vector<std::pair<std::string, uint32_t>>& unknown_results() {
  return unknown_now();
}

} // namespace sandtable
