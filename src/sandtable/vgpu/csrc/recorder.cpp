#include "recorder.h"

#include "races.h"

#include <algorithm>
#include <atomic>

namespace sandtable {
namespace {

thread_local uint32_t job_here = 0;
thread_local Fences waited_here; // where there is no job
std::atomic<uint32_t> next_job_fence{0xC0000000u};

bool is_of_memory(Kind kind) {
  return kind == Kind::kAlloc || kind == Kind::kFree || kind == Kind::kSegmentAlloc || kind == Kind::kSegmentFree;
}

} // namespace

Recorder& Recorder::get() {
  static Recorder* recorder = new Recorder();
  return *recorder;
}

void Recorder::add(Kind what, uint32_t reference, uint16_t on_stream, int64_t amount) {
  if (!compiling_)
    order(what, reference, on_stream, amount);
  if (!recording_ || (compiling_ && !is_of_memory(what)))
    return;
  Place place = current_place();
  write_down(what, reference, on_stream, amount, place.phase, place.line);
}

void Recorder::add(Kind what, uint32_t reference, uint16_t on_stream, int64_t amount, Phase in_phase, uint32_t at_line) {
  if (!compiling_)
    order(what, reference, on_stream, amount);
  write_down(what, reference, on_stream, amount, in_phase, at_line);
}

void Recorder::write_down(
    Kind what, uint32_t reference, uint16_t on_stream, int64_t amount, Phase in_phase, uint32_t at_line) {
  if (!recording_ || (compiling_ && !is_of_memory(what)))
    return;
  if (what == Kind::kHostSync && (job_here != 0 || !is_main()))
    return keep_wait(reference, on_stream, amount);
  std::lock_guard<std::mutex> lock(mutex);
  // A block may have been handed over after the job was, so it is freed now.
  bool of_job = job_here != 0 && what != Kind::kFree;
  mark.push_back(of_job ? jobs_[job_here - 1].mark : static_cast<int64_t>(kind.size()));
  job.push_back(of_job ? job_here : 0);
  kind.push_back(static_cast<uint8_t>(what));
  ref.push_back(reference);
  stream.push_back(on_stream);
  phase.push_back(static_cast<uint8_t>(in_phase));
  line.push_back(at_line);
  value.push_back(amount);
  num_operators_ += what == Kind::kOperator;
}

size_t Recorder::num_rows() {
  std::lock_guard<std::mutex> lock(mutex);
  return kind.size();
}

std::vector<Row> Recorder::take_rows(size_t begin) {
  std::lock_guard<std::mutex> lock(mutex);
  std::vector<Row> taken;
  size_t kept = begin;
  for (size_t i = begin; i < kind.size(); ++i) {
    auto what = static_cast<Kind>(kind[i]);
    if (!is_of_memory(what)) {
      taken.push_back({what, ref[i], stream[i], static_cast<Phase>(phase[i]), line[i], value[i]});
      num_operators_ -= what == Kind::kOperator;
      continue;
    }
    kind[kept] = kind[i];
    ref[kept] = ref[i];
    stream[kept] = stream[i];
    phase[kept] = phase[i];
    line[kept] = line[i];
    value[kept] = value[i];
    mark[kept] = static_cast<int64_t>(kept);
    job[kept] = job[i];
    ++kept;
  }
  kind.resize(kept);
  ref.resize(kept);
  stream.resize(kept);
  phase.resize(kept);
  line.resize(kept);
  value.resize(kept);
  mark.resize(kept);
  job.resize(kept);
  return taken;
}

void Recorder::host_sync(Sync what, uint16_t on_stream) {
  if (recording_ && is_main())
    note_read(what, current_place().line);
  add(Kind::kHostSync, 0, on_stream, static_cast<int64_t>(what));
}

void Recorder::note_read(Sync what, uint32_t at_line) {
  std::string library = library_here();
  std::lock_guard<std::mutex> lock(mutex);
  for (HostRead& read : host_reads)
    if (read.what == what && read.line == at_line && read.library == library) {
      ++read.count;
      return;
    }
  host_reads.push_back({what, at_line, std::move(library), 1});
}

void Recorder::end_update(uint32_t updater, int64_t detail) {
  add(Kind::kStep, updater, 0, detail, Phase::kOptimizer, 0);
  before_update_ = num_operators_;
}

uint32_t Recorder::submit_job() {
  Place place = current_place();
  std::lock_guard<std::mutex> lock(mutex);
  jobs_.push_back({job_here != 0 ? jobs_[job_here - 1].mark : static_cast<int64_t>(kind.size()), place, {}, {}});
  return static_cast<uint32_t>(jobs_.size());
}

void Recorder::begin_job(uint32_t number) {
  job_here = number;
}

void Recorder::end_job(uint32_t number) {
  if (job_here == number)
    job_here = 0;
}

void Recorder::join_job(uint32_t number) {
  std::vector<uint32_t> awaited;
  {
    std::lock_guard<std::mutex> lock(mutex);
    Job& done = jobs_[number - 1];
    awaited.swap(done.events);
    for (auto [_, fence] : done.fences)
      awaited.push_back(fence);
    done.fences.clear();
  }
  for (uint32_t event : awaited)
    add(Kind::kHostSync, event, 0, static_cast<int64_t>(Sync::kEvent));
}

std::optional<Place> Recorder::place_of_job() {
  if (job_here == 0)
    return std::nullopt;
  std::lock_guard<std::mutex> lock(mutex);
  return jobs_[job_here - 1].place;
}

void Recorder::set_main_thread() {
  main_thread_ = std::this_thread::get_id();
}

bool Recorder::is_main() const {
  return main_thread_ == std::thread::id() || main_thread_ == std::this_thread::get_id();
}

void Recorder::follow_waits(uint16_t on_stream) {
  std::vector<uint32_t> awaited;
  {
    std::lock_guard<std::mutex> lock(mutex);
    for (auto [other, fence] : waited_here) {
      uint32_t& last = followed_[{on_stream, other}];
      if (other != on_stream && last != fence)
        awaited.push_back(fence);
      last = fence;
    }
  }
  for (uint32_t fence : awaited)
    add(Kind::kEventWait, fence, on_stream, 0);
}

uint32_t Recorder::share_waits(uint32_t earlier) {
  if (waited_here.empty())
    return earlier;
  std::lock_guard<std::mutex> lock(mutex);
  Fences all = earlier != 0 ? shared_[earlier - 1] : Fences();
  for (auto [other, fence] : waited_here)
    all[other] = std::max(all[other], fence);
  shared_.push_back(std::move(all));
  return static_cast<uint32_t>(shared_.size());
}

void Recorder::take_waits(uint32_t number) {
  Fences fences;
  {
    std::lock_guard<std::mutex> lock(mutex);
    fences = shared_[number - 1];
  }
  take(fences);
}

void Recorder::gather_waits() {
  Fences fences;
  {
    std::lock_guard<std::mutex> lock(mutex);
    fences = strays_;
  }
  take(fences);
}

// Fences are numbered in the order of their making, so that of one stream the larger is the later.
void Recorder::take(const Fences& fences) {
  std::vector<uint32_t> awaited;
  for (auto [other, fence] : fences) {
    uint32_t& last = waited_here[other];
    if (last < fence)
      awaited.push_back(last = fence);
  }
  if (is_main() && job_here == 0)
    for (uint32_t fence : awaited)
      add(Kind::kHostSync, fence, 0, static_cast<int64_t>(Sync::kEvent));
}

// A wait of another thread than the main one: an event takes its place, for which others wait later.
void Recorder::keep_wait(uint32_t reference, uint16_t on_stream, int64_t amount) {
  bool is_event = amount == static_cast<int64_t>(Sync::kEvent);
  uint32_t fence = is_event ? reference : next_job_fence++;
  if (!is_event)
    add(Kind::kEventRecord, fence, on_stream, 0);
  std::lock_guard<std::mutex> lock(mutex);
  if (job_here == 0) {
    if (!is_event)
      strays_[on_stream] = waited_here[on_stream] = fence;
  } else if (is_event) {
    jobs_[job_here - 1].events.push_back(fence);
  } else {
    jobs_[job_here - 1].fences[on_stream] = fence;
  }
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
