// A few of Python's audit events, reported as they happen. A hook of `sys.addaudithook` would cost a Python call for every
// event, and optimizers raise hundreds of them per step: `id` is one.
#include <Python.h>

#include <deque>
#include <utility>

#include "audit_events.h"

namespace sandtable {
namespace {

// The names of events and whom to call. Guarded by the GIL; never destroyed, because events go on while Python ends.
auto& watchers() {
  static auto* list = new std::deque<std::pair<std::string, PyObject*>>();
  return *list;
}

int handle(const char* event, PyObject* arguments, void*) {
  for (size_t i = 0; i < watchers().size(); ++i) { // no iterators: a callback may let another thread add a watcher
    const auto& [name, callback] = watchers()[i];
    if (name != event)
      continue;
    PyObject* result = PyObject_CallFunction(callback, "sO", event, arguments);
    if (result == nullptr)
      return -1;
    Py_DECREF(result);
  }
  return 0;
}

} // namespace

void watch_audit_events(const std::vector<std::string>& names, const pybind11::object& callback) {
  if (watchers().empty() && PySys_AddAuditHook(&handle, nullptr) != 0)
    throw pybind11::error_already_set();
  for (const std::string& name : names)
    watchers().emplace_back(name, pybind11::object(callback).release().ptr());
}

} // namespace sandtable
