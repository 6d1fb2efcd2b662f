#pragma once

#include <pybind11/pybind11.h>

namespace sandtable {

// From now on, in this thread: calls `callback` when a function returns for whose frame `is_watched_frame` is true.
void watch_returns(const pybind11::object& is_watched_frame, const pybind11::object& callback);

} // namespace sandtable
