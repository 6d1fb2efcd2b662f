#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <vector>

namespace sandtable {

// From now on: calls `callback(event, arguments)` for each audit event with one of these names. What it raises is raised
// where the event happens.
void watch_audit_events(const std::vector<std::string>& names, const pybind11::object& callback);

} // namespace sandtable
