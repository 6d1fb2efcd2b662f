// Returns of one Python function, reported as they happen. Python's own profile hooks would cost a Python call for every
// call and return of the script; here each code object is looked at once.
#include <Python.h>

#include <unordered_map>

#include "returns.h"

namespace sandtable {
namespace {

PyObject* is_watched = nullptr; // called with the frame of each code object's first return
PyObject* on_return = nullptr;
std::unordered_map<PyCodeObject*, bool> watched; // guarded by the GIL

int handle(PyObject*, PyFrameObject* frame, int event, PyObject* value) {
  if (event != PyTrace_RETURN || value == nullptr) // nullptr: it raises
    return 0;
  PyCodeObject* code = PyFrame_GetCode(frame);
  auto found = watched.find(code);
  if (found == watched.end()) {
    PyObject* answer = PyObject_CallOneArg(is_watched, reinterpret_cast<PyObject*>(frame));
    if (answer == nullptr)
      return -1;
    found = watched.emplace(code, answer == Py_True).first;
    Py_DECREF(answer); // the code stays referenced: its address is the key
  } else {
    Py_DECREF(code);
  }
  if (!found->second)
    return 0;
  PyObject* result = PyObject_CallNoArgs(on_return);
  Py_XDECREF(result);
  return result == nullptr ? -1 : 0;
}

} // namespace

void watch_returns(const pybind11::object& is_watched_frame, const pybind11::object& callback) {
  is_watched = is_watched_frame.inc_ref().ptr();
  on_return = callback.inc_ref().ptr();
  PyEval_SetProfile(&handle, nullptr);
}

} // namespace sandtable
