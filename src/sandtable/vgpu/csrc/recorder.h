// The recorder: the tape on which everything a rank does is written down, in the order the host issued it.
//
// One row a fact (an operator, a collective, an allocation, ...), kept column by column so that a million rows are a
// few contiguous arrays. Operators are rows that point into a table of signatures: a training loop repeats itself,
// so there are thousands of rows a signature.
#pragma once

#include <cstdint>
#include <mutex>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace sandtable {

// The numbers are part of the trace format: sandtable.trace.records holds the same ones.
enum class Kind : uint8_t {
  kOperator = 0,
  kCollective = 1,
  kWait = 2,
  kEventRecord = 3,
  kEventWait = 4,
  kHostSync = 5,
  kAlloc = 6,
  kFree = 7,
  kStep = 8,
  kSegmentAlloc = 9,
  kSegmentFree = 10,
};

enum class Phase : uint8_t { kForward = 0, kBackward = 1, kOptimizer = 2, kRecompute = 3 };

// How the host launches an operator: the number is the `value` of its row.
enum class Launch : int64_t { kEager = 0, kCompiled = 1, kGraph = 2, kCall = 3, kHooked = 4 };

enum class Sync : int64_t { kDevice = 0, kStream = 1, kEvent = 2, kItem = 3, kCopy = 4, kShape = 5 };

struct Line {
  std::string file;
  int line;
  std::string function;
};

struct Note {
  std::string kind;
  std::string text;
  uint32_t line;
};

struct Row {
  Kind kind;
  uint32_t ref;
  uint16_t stream;
  Phase phase;
  uint32_t line;
  int64_t value;
};

// How often the host waited for the card at a line, for the script itself or in a file of a library.
struct HostRead {
  Sync what;
  uint32_t line;
  std::string library;
  int64_t count;
};

// Where in the script are we, and in which phase? (phase.cpp)
struct Place {
  Phase phase;
  uint32_t line;
};
Place current_place();
std::string library_here(); // the file of the innermost frame that is no observer's, if it is a library's
bool is_inside_module(); // whether the forward of a torch.nn.Module is under way

// A job: what one thread hands to another, whose result it takes later. There is one host on the tape, so a job's rows
// stand where it was handed over, from when on its thread could issue them; and where its thread waited for the device,
// the one that takes the result waits, when it does so.
using Fences = std::map<uint16_t, uint32_t>; // by stream: an event behind all that was waited for there
struct Job {
  int64_t mark;
  Place place;
  Fences fences;
  std::vector<uint32_t> events;
};

class Recorder {
 public:
  static Recorder& get();

  // Numbers of jobs begin with 1; 0 is none.
  uint32_t submit_job();
  void begin_job(uint32_t number); // on the thread that does it
  void end_job(uint32_t number);
  void join_job(uint32_t number); // its result is taken
  std::optional<Place> place_of_job();

  // Threads that work for nobody in particular (a server's) hold the main one up no more than jobs do. What such a
  // thread has waited for comes before whatever it sends later, and so does what it learnt from another thread.
  void set_main_thread();
  void follow_waits(uint16_t stream);     // a message leaves on the stream
  uint32_t share_waits(uint32_t earlier); // for another thread to take, with those shared under that number before
  void take_waits(uint32_t number);
  void gather_waits(); // of all such threads

  void add(Kind kind, uint32_t ref, uint16_t stream, int64_t value);
  void add(Kind kind, uint32_t ref, uint16_t stream, int64_t value, Phase phase, uint32_t line);
  size_t num_rows();
  std::vector<Row> take_rows(size_t begin); // off the tape, from here to its end, except those of memory
  bool is_main() const; // whether this is the thread that runs the script
  void host_sync(Sync what, uint16_t stream);
  uint32_t add_signature(std::string json);
  // A note is kept once for each (kind, text, line).
  void note(const std::string& kind, const std::string& text, uint32_t line);

  void set_optimizer(bool inside) { in_optimizer_ = inside; }
  void set_backward(bool inside) { in_backward_ = inside; } // also where no gradient is computed: they are reduced
  void end_update(uint32_t updater, int64_t detail); // a step may end here: capture.py decides when all is known
  // How many operators may come between one update and the next.
  void set_operator_limit(int64_t limit) { operator_limit_ = limit; }
  void set_recording(bool on) { recording_ = on; }
  bool recording() const { return recording_; }
  // A compiler is at work: it traces the script with tensors of its own, so only what memory those take is recorded.
  void set_compiling(bool on) { compiling_ = on; }
  bool compiling() const { return compiling_; }
  // The first operator that is launched otherwise than eagerly is a call of what launches it.
  void set_launch(Launch launch) {
    if (launch_ == Launch::kEager || launch == Launch::kEager)
      calling_ = launch != Launch::kEager;
    launch_ = launch;
  }
  Launch launch() const { return launch_; }
  Launch take_launch() {
    Launch launch = calling_ ? Launch::kCall : launch_;
    calling_ = false;
    return launch;
  }
  bool in_optimizer() const { return in_optimizer_; }
  bool in_backward() const { return in_backward_; }
  bool over_limit() const { return operator_limit_ > 0 && num_operators_ - before_update_ >= operator_limit_; }
  int64_t num_operators() const { return num_operators_; }

  std::vector<uint8_t> kind;
  std::vector<uint32_t> ref;
  std::vector<uint16_t> stream;
  std::vector<uint8_t> phase;
  std::vector<uint32_t> line;
  std::vector<int64_t> value;
  std::vector<int64_t> mark;  // before which row it belongs
  std::vector<uint32_t> job;
  std::vector<std::string> signatures;
  std::vector<Note> notes;
  std::vector<HostRead> host_reads;
  std::mutex mutex;

 private:
  void write_down(Kind kind, uint32_t ref, uint16_t stream, int64_t value, Phase phase, uint32_t line);
  void note_read(Sync what, uint32_t at_line);
  void keep_wait(uint32_t ref, uint16_t stream, int64_t value);
  void take(const Fences& fences);

  std::vector<Job> jobs_;
  std::thread::id main_thread_;
  Fences strays_;                                                 // of all threads that have no job
  std::vector<Fences> shared_;
  std::map<std::pair<uint16_t, uint16_t>, uint32_t> followed_;    // by stream, and the stream that was waited for
  bool recording_ = true;
  bool compiling_ = false;
  Launch launch_ = Launch::kEager;
  bool calling_ = false;
  bool in_optimizer_ = false;
  bool in_backward_ = false;
  int64_t operator_limit_ = 0;
  int64_t num_operators_ = 0;
  int64_t before_update_ = 0;
};

// While one lives on this thread, all that is recorded belongs to one operator: its place is looked up once, if at all.
class OneOperator {
 public:
  OneOperator();
  ~OneOperator();
  OneOperator(const OneOperator&) = delete;
  OneOperator& operator=(const OneOperator&) = delete;

 private:
  friend Place current_place();
  OneOperator* outer_;
  std::optional<Place> place_;
};
// An autograd function's forward begins: whether it is part of a forward pass done again; then `end_function` follows.
bool begin_function();
void end_function();
const std::vector<Line>& known_lines();
std::string describe_line(uint32_t line);
void set_library_prefixes(std::vector<std::string> prefixes, std::vector<std::string> except, std::string observers);

} // namespace sandtable
