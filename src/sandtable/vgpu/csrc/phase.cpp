// Where are we? The line of the script that asked for the work, and the phase of training it belongs to.
//
// The line is that of the innermost frame that is not library code. Backward operators have none of their own: theirs is
// the line of the forward operator, found by the sequence number which autograd gives to both. What runs with gradients
// enabled inside backward is a forward pass done again; so is what an autograd function's forward, which turns gradients
// off, does there.
#include <Python.h>

#include <ATen/SequenceNumber.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <unordered_map>

#include "compatibility.h"
#include "recorder.h"

namespace sandtable {
namespace {

struct Code {
  bool is_library;
  bool is_observer; // calls a function of torch in the script's place
  std::string file;
  std::string function;
  std::unordered_map<int, uint32_t> line_of_instruction;
};

std::vector<std::string> library_prefixes;
std::vector<std::string> script_prefixes; // of an installed package that is what the user runs
std::string observer_prefix;
std::vector<Line> lines{{"", 0, ""}};
std::unordered_map<PyCodeObject*, Code> codes; // guarded by the GIL
std::vector<uint32_t> line_of_sequence;
std::mutex sequence_mutex;
thread_local int recomputing_functions = 0;
thread_local OneOperator* operator_under_way = nullptr;

std::string attribute(PyObject* object, const char* name) {
  PyObject* value = PyObject_GetAttrString(object, name);
  std::string text;
  if (value != nullptr && PyUnicode_Check(value))
    text = PyUnicode_AsUTF8(value);
  Py_XDECREF(value);
  PyErr_Clear();
  return text;
}

Code& lookup(PyCodeObject* code) {
  auto found = codes.find(code);
  if (found != codes.end())
    return found->second;
  Py_INCREF(code); // the address is the key, so it must stay taken
  Code info;
  info.file = attribute(reinterpret_cast<PyObject*>(code), "co_filename");
  info.function = attribute(reinterpret_cast<PyObject*>(code), "co_qualname");
  auto begins_with = [&](const std::string& prefix) { return info.file.compare(0, prefix.size(), prefix) == 0; };
  info.is_library = info.file.empty() || info.file[0] == '<' ||
      (std::any_of(library_prefixes.begin(), library_prefixes.end(), begins_with) &&
       std::none_of(script_prefixes.begin(), script_prefixes.end(), begins_with));
  info.is_observer = !observer_prefix.empty() && begins_with(observer_prefix);
  return codes.emplace(code, std::move(info)).first->second;
}

uint32_t line_of(PyFrameObject* frame, Code& code) {
  int instruction = PyFrame_GetLasti(frame);
  auto found = code.line_of_instruction.find(instruction);
  if (found != code.line_of_instruction.end())
    return found->second;
  int number = PyFrame_GetLineNumber(frame);
  uint32_t id = 0;
  for (; id < lines.size(); ++id)
    if (lines[id].line == number && lines[id].file == code.file && lines[id].function == code.function)
      break;
  if (id == lines.size())
    lines.push_back({code.file, number, code.function});
  code.line_of_instruction.emplace(instruction, id);
  return id;
}

// Calls `visit` with each frame of Python, the innermost first, until it returns true; returns whether one did.
// Errors that are pending when this is called stay as they are: nothing here raises.
template <typename Visit>
bool find_frame(Visit visit) {
  if (!Py_IsInitialized() || PyGILState_GetThisThreadState() == nullptr)
    return false;
  PyGILState_STATE gil = PyGILState_Ensure();
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  bool is_found = false;
  while (frame != nullptr) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    is_found = visit(frame, lookup(code));
    Py_DECREF(code);
    PyFrameObject* back = is_found ? nullptr : PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
  }
  PyGILState_Release(gil);
  return is_found;
}

uint32_t python_line() {
  uint32_t line = 0;
  find_frame([&](PyFrameObject* frame, Code& code) {
    if (!code.is_library)
      line = line_of(frame, code);
    return !code.is_library;
  });
  return line;
}

Place find_place() {
  bool in_backward = torch::autograd::get_current_graph_task_id() != -1;
  uint32_t line = python_line();
  if (Recorder::get().in_optimizer()) // also one that steps inside backward, parameter by parameter
    return {Phase::kOptimizer, line};
  if (in_backward) {
    if ((c10::GradMode::is_enabled() || recomputing_functions > 0) && line != 0)
      return {Phase::kRecompute, line};
    auto node = torch::autograd::get_current_node();
    std::lock_guard<std::mutex> lock(sequence_mutex);
    if (node && node->sequence_nr() < line_of_sequence.size() && line_of_sequence[node->sequence_nr()] != 0)
      line = line_of_sequence[node->sequence_nr()];
    return {Phase::kBackward, line};
  }
  if (Recorder::get().in_backward())
    return {Phase::kBackward, line};
  uint64_t next = at::sequence_number::peek();
  if (line != 0 && next > 0 && c10::GradMode::is_enabled()) {
    std::lock_guard<std::mutex> lock(sequence_mutex);
    if (line_of_sequence.size() < next)
      line_of_sequence.resize(next * 2, 0);
    line_of_sequence[next - 1] = line;
  }
  return {Phase::kForward, line};
}

} // namespace

OneOperator::OneOperator() : outer_(operator_under_way) {
  operator_under_way = this;
}

OneOperator::~OneOperator() {
  operator_under_way = outer_;
}

Place current_place() {
  if (operator_under_way != nullptr && operator_under_way->place_)
    return *operator_under_way->place_;
  Place place = find_place();
  if (place.line == 0) // a thread of a library: who gave it the job?
    place = Recorder::get().place_of_job().value_or(place);
  if (operator_under_way != nullptr)
    operator_under_way->place_ = place;
  return place;
}

std::string library_here() {
  std::string file;
  find_frame([&](PyFrameObject*, Code& code) {
    if (code.is_library && !code.is_observer)
      file = code.file;
    return !code.is_observer;
  });
  return file;
}

bool is_inside_module() {
  return find_frame([](PyFrameObject*, Code& code) { return code.function == "Module._call_impl"; });
}

bool begin_function() {
  bool again = torch::autograd::get_current_graph_task_id() != -1 && c10::GradMode::is_enabled();
  recomputing_functions += again;
  return again;
}

void end_function() {
  --recomputing_functions;
}

const std::vector<Line>& known_lines() {
  return lines;
}

std::string describe_line(uint32_t line) {
  if (line == 0 || line >= lines.size())
    return "(no line of the script)";
  return lines[line].file + ":" + std::to_string(lines[line].line) + " (" + lines[line].function + ")";
}

void set_library_prefixes(std::vector<std::string> prefixes, std::vector<std::string> except, std::string observers) {
  library_prefixes = std::move(prefixes);
  script_prefixes = std::move(except);
  observer_prefix = std::move(observers);
}

} // namespace sandtable
