#include "recorder.h"

namespace sandtable {

Recorder& Recorder::get() {
  static Recorder* recorder = new Recorder();
  return *recorder;
}

void Recorder::add(Kind what, uint32_t reference, uint16_t on_stream, int64_t amount) {
  if (!recording_)
    return;
  Place place = current_place();
  add(what, reference, on_stream, amount, place.phase, place.line);
}

void Recorder::add(Kind what, uint32_t reference, uint16_t on_stream, int64_t amount, Phase in_phase, uint32_t at_line) {
  if (!recording_)
    return;
  std::lock_guard<std::mutex> lock(mutex);
  kind.push_back(static_cast<uint8_t>(what));
  ref.push_back(reference);
  stream.push_back(on_stream);
  phase.push_back(static_cast<uint8_t>(in_phase));
  line.push_back(at_line);
  value.push_back(amount);
  num_operators_ += what == Kind::kOperator;
}

void Recorder::host_sync(Sync what, uint16_t on_stream) {
  add(Kind::kHostSync, 0, on_stream, static_cast<int64_t>(what));
}

void Recorder::end_step(uint32_t number) {
  add(Kind::kStep, number, 0, 0, Phase::kOptimizer, 0);
  before_step_ = num_operators_;
}

uint32_t Recorder::add_signature(std::string json) {
  std::lock_guard<std::mutex> lock(mutex);
  signatures.push_back(std::move(json));
  return static_cast<uint32_t>(signatures.size() - 1);
}

void Recorder::note(const std::string& what, const std::string& text, uint32_t at_line) {
  std::lock_guard<std::mutex> lock(mutex);
  for (const Note& known : notes)
    if (known.line == at_line && known.kind == what && known.text == text)
      return;
  notes.push_back({what, text, at_line});
}

} // namespace sandtable
