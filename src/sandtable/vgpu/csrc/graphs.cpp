#include "graphs.h"

#include <unordered_map>

#include "device.h"
#include "nccl.h"
#include "recorder.h"

namespace sandtable {
namespace {

struct Graph {
  uint16_t stream = 0;
  std::vector<Row> rows;
};

std::vector<Graph>& graphs() {
  static auto* all = new std::vector<Graph>();
  return *all;
}

bool is_capturing = false;
size_t first_row = 0;
uint16_t captured_stream = 0;
uint32_t next_graph_event = 0xA0000000u;

} // namespace

void begin_graph() {
  is_capturing = true;
  first_row = Recorder::get().num_rows();
  captured_stream = static_cast<uint16_t>(current_stream(current_device()));
}

bool capturing() {
  return is_capturing;
}

uint32_t end_graph() {
  is_capturing = false;
  graphs().push_back({captured_stream, Recorder::get().take_rows(first_row)});
  return static_cast<uint32_t>(graphs().size() - 1);
}

std::vector<uint32_t> replay_graph(uint32_t number) {
  Recorder& recorder = Recorder::get();
  const Graph& graph = graphs().at(number);
  uint16_t here = static_cast<uint16_t>(current_stream(current_device()));
  std::unordered_map<uint32_t, uint32_t> calls, events, batches;
  auto known = [](const auto& map, uint32_t key) { auto found = map.find(key); return found == map.end() ? key : found->second; };
  std::vector<uint32_t> updaters;
  Launch launch = Launch::kCompiled; // of the graph, by its first row
  for (const Row& row : graph.rows) {
    uint16_t stream = row.stream == graph.stream ? here : row.stream;
    uint32_t reference = row.ref;
    switch (row.kind) {
      case Kind::kStep:
        recorder.end_update(row.ref, row.value);
        updaters.push_back(row.ref);
        continue;
      case Kind::kHostSync: // a card refuses it in a capture
        continue;
      case Kind::kCollective:
        reference = calls[row.ref] = repeat_call(row.ref, stream, batches);
        break;
      case Kind::kWait:
        reference = known(calls, row.ref);
        break;
      case Kind::kEventRecord:
        reference = events[row.ref] = next_graph_event++;
        break;
      case Kind::kEventWait:
        reference = known(events, row.ref);
        break;
      default:
        break;
    }
    recorder.add(row.kind, reference, stream, row.kind == Kind::kWait ? 0 : static_cast<int64_t>(launch), row.phase, row.line);
    launch = Launch::kGraph;
  }
  return updaters;
}

} // namespace sandtable
