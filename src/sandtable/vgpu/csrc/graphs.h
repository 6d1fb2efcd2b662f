// CUDA graphs: work that is captured once, without being done, and done by each replay, which is one launch.
#pragma once

#include <cstdint>
#include <vector>

namespace sandtable {

void begin_graph(); // what is recorded from here on belongs to a graph
bool capturing();
// Takes what was recorded since `begin_graph` off the tape, except memory; returns the graph's number.
uint32_t end_graph();
// Records the work of a graph again, on the current stream and on those that it forks to. Returns who updated parameters
// in it, for steps end there.
std::vector<uint32_t> replay_graph(uint32_t number);

} // namespace sandtable
