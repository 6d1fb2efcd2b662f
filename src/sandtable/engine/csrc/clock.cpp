// The event clock: programs of actors in, start and end of every instruction out.
//
// A parade ground: each actor has a host that issues instructions, and streams that execute them one after the other.
// An instruction to meet (a collective, a message) waits until all its members have arrived; then the transfer crosses
// the links, which all transfers share fairly. Time only moves forward, from one event to the next; events at the same
// moment are processed in order of creation, so that the same input gives the same output.
//
// Plain C interface for ctypes; clock.py explains the arrays.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <queue>
#include <vector>

namespace {

enum Kind : uint8_t { RUN = 0, CALL = 1, WAIT = 2, MARK = 3, HOST_WAIT = 4 };

constexpr int64_t PENDING = -1;
constexpr double MIN_RATE = 0.05;

}  // namespace

extern "C" {

struct Program {
  int64_t num_instructions;
  int32_t num_streams;
  const uint8_t* kind;
  const uint8_t* is_copy;
  const uint16_t* stream;
  const int32_t* arg;      // WAIT, HOST_WAIT: the instruction waited for, or -1; CALL: its first row
  const int32_t* count;    // CALL: number of rows that are issued as one
  const int64_t* host_ns;  // what issuing costs the host
  const int64_t* work_ns;  // RUN: work on the device
  const int64_t* lag_ns;   // RUN: from its first issue to its end on an idle device
  const int64_t* lead_ns;  // RUN: from its first issue to its first kernel on an idle device
  const int32_t* row_edge;
  const int32_t* row_occurrence;
  const int32_t* row_pattern;
};

struct ActorInput {
  int32_t program;
  double slowness;     // factor on work
  double jitter;       // standard deviation of the factor on each run
  uint64_t seed;
  const int32_t* channel_of_edge;
  const int32_t* transfer_of_pattern;
  int64_t* issue_ns;
  int64_t* start_ns;
  int64_t* meet_ns;    // CALL: when the last member arrived
  int64_t* end_ns;
};

struct TransferInput {
  double latency_ns;
  double work_ns;
  double sm_share;
  int32_t first_link;  // into links / loads
  int32_t num_links;
};

struct Network {
  int32_t num_links;
  int32_t num_channels;
  const int32_t* slots;  // arrivals a channel waits for
  const TransferInput* transfers;
  const int32_t* links;
  const double* loads;
};

struct Stuck {
  int32_t actor;
  int32_t stream;        // -1: the host
  int64_t instruction;
};

}  // extern "C"

namespace {

struct Event {
  int64_t time;
  uint64_t sequence;
  int32_t type;
  int32_t a;
  int32_t b;
  uint32_t version;
};

struct Later {
  bool operator()(const Event& x, const Event& y) const {
    return x.time != y.time ? x.time > y.time : x.sequence > y.sequence;
  }
};

enum EventType { RUN_DONE, STREAM_WAKE, NET_START, NET_DONE };

struct Stream {
  std::deque<int32_t> queue;
  int64_t free_ns = 0;
  bool busy = false;      // its front runs, or is in a meeting
  bool waking = false;    // a wake-up is on its way
  bool blocked = false;   // its front waits for another instruction
  int32_t outstanding = 0;
  double remaining = 0, rate = 1, occupancy = 0;
  int64_t updated_ns = 0;
  uint32_t version = 0;
  bool computing = false;
};

struct Waiter {
  int32_t instruction;
  int32_t stream;
};

struct Actor {
  const Program* program = nullptr;
  const ActorInput* input = nullptr;
  std::vector<Stream> streams;
  std::vector<Waiter> waiters;
  int64_t pc = 0;
  int64_t host_ns = 0;
  int64_t host_waits_for = -1;
  double comm_share = 0;
};

struct Member {
  int32_t actor;
  int32_t stream;
  int32_t instruction;
};

struct Meeting {
  std::vector<Member> members;
  int32_t transfer = -1;
};

struct Channel {
  int32_t slots = 0;
  int64_t base = 0;
  std::deque<Meeting> pending;
};

struct Active {
  std::vector<Member> members;
  int32_t transfer = -1;
  double remaining = 0, speed = 1;
  int64_t updated_ns = 0;
  uint32_t version = 0;
  uint32_t mark = 0;
  bool on_wire = false;
};

uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// A factor with mean 1 that depends on the seed and the instruction alone.
double jitter_factor(const ActorInput& input, int64_t instruction) {
  if (input.jitter <= 0)
    return 1;
  uint64_t bits = mix(input.seed ^ mix(static_cast<uint64_t>(instruction)));
  double u = ((bits >> 11) + 1) * (1.0 / 9007199254740993.0);
  double v = (mix(bits) >> 11) * (1.0 / 9007199254740992.0);
  double normal = std::sqrt(-2 * std::log(u)) * std::cos(6.283185307179586 * v);
  return std::exp(input.jitter * normal - 0.5 * input.jitter * input.jitter);
}

class Clock {
 public:
  Clock(const Program* programs, const ActorInput* actors, int32_t num_actors, const Network& network)
      : network_(network), actors_(num_actors), channels_(network.num_channels), on_link_(network.num_links),
        link_mark_(network.num_links, 0), link_left_(network.num_links, 0) {
    for (int32_t i = 0; i < num_actors; ++i) {
      actors_[i].input = &actors[i];
      actors_[i].program = &programs[actors[i].program];
      actors_[i].streams.resize(actors_[i].program->num_streams);
    }
    for (int32_t i = 0; i < network.num_channels; ++i)
      channels_[i].slots = network.slots[i];
  }

  int64_t run(Stuck* stuck, int64_t max_stuck) {
    for (size_t i = 0; i < actors_.size(); ++i)
      run_host(static_cast<int32_t>(i));
    work_off();
    while (!events_.empty()) {
      Event event = events_.top();
      events_.pop();
      now_ = event.time;
      handle(event);
      work_off();
    }
    return report(stuck, max_stuck);
  }

 private:
  // ---- events ----

  void push(int64_t time, EventType type, int32_t a, int32_t b, uint32_t version) {
    events_.push({std::max(time, now_), next_sequence_++, type, a, b, version});
  }

  void handle(const Event& event) {
    if (event.type == STREAM_WAKE) {
      actors_[event.a].streams[event.b].waking = false;
      todo_.push_back({event.a, event.b});
    } else if (event.type == RUN_DONE) {
      Actor& actor = actors_[event.a];
      Stream& stream = actor.streams[event.b];
      if (stream.version == event.version && stream.busy)
        end_run(event.a, event.b);
    } else if (event.type == NET_START) {
      go_on_wire(event.a);
    } else if (active_[event.a].version == event.version) {
      end_transfer(event.a);
    }
  }

  void work_off() {
    while (!todo_.empty()) {
      auto [actor, stream] = todo_.back();
      todo_.pop_back();
      advance(actor, stream);
    }
  }

  // ---- host and streams ----

  void run_host(int32_t index) {
    Actor& actor = actors_[index];
    const Program& program = *actor.program;
    actor.host_waits_for = -1;
    while (actor.pc < program.num_instructions) {
      int64_t pc = actor.pc;
      if (program.kind[pc] == HOST_WAIT) {
        int32_t dep = program.arg[pc];
        int64_t ready = dep < 0 ? 0 : actor.input->end_ns[dep];
        if (ready == PENDING) {
          actor.host_waits_for = dep;
          return;
        }
        actor.input->issue_ns[pc] = actor.input->start_ns[pc] = actor.host_ns;
        actor.host_ns = std::max(actor.host_ns, ready) + program.host_ns[pc];
        actor.input->end_ns[pc] = actor.host_ns;
      } else {
        actor.input->issue_ns[pc] = actor.host_ns;
        actor.host_ns += program.host_ns[pc];
        Stream& stream = actor.streams[program.stream[pc]];
        if (stream.queue.empty())
          todo_.push_back({index, program.stream[pc]});
        stream.queue.push_back(static_cast<int32_t>(pc));
      }
      ++actor.pc;
    }
  }

  void advance(int32_t index, int32_t s) {
    Actor& actor = actors_[index];
    Stream& stream = actor.streams[s];
    const Program& program = *actor.program;
    while (!stream.busy && !stream.waking && !stream.blocked && !stream.queue.empty()) {
      int32_t pc = stream.queue.front();
      int64_t issued = actor.input->issue_ns[pc];
      switch (program.kind[pc]) {
        case RUN:
          begin_run(index, s, pc, issued);
          break;
        case CALL: {
          int64_t arrival = std::max(stream.free_ns, issued + program.host_ns[pc]);
          if (arrival > now_) {
            stream.waking = true;
            push(arrival, STREAM_WAKE, index, s, 0);
            return;
          }
          begin_call(index, s, pc, arrival);
          break;
        }
        case WAIT: {
          int32_t dep = program.arg[pc];
          int64_t ready = dep < 0 ? 0 : actor.input->end_ns[dep];
          if (ready == PENDING) {
            stream.blocked = true;
            actor.waiters.push_back({dep, s});
            return;
          }
          actor.input->start_ns[pc] = stream.free_ns;
          stream.free_ns = std::max({stream.free_ns, ready, issued});
          stream.queue.pop_front();
          complete(index, pc, stream.free_ns);
          break;
        }
        default:  // MARK
          stream.free_ns = std::max(stream.free_ns, issued);
          actor.input->start_ns[pc] = stream.free_ns;
          stream.queue.pop_front();
          complete(index, pc, stream.free_ns);
      }
    }
  }

  void complete(int32_t index, int32_t pc, int64_t time) {
    Actor& actor = actors_[index];
    actor.input->end_ns[pc] = time;
    for (size_t i = 0; i < actor.waiters.size();) {
      if (actor.waiters[i].instruction == pc) {
        actor.streams[actor.waiters[i].stream].blocked = false;
        todo_.push_back({index, actor.waiters[i].stream});
        actor.waiters[i] = actor.waiters.back();
        actor.waiters.pop_back();
      } else {
        ++i;
      }
    }
    if (actor.host_waits_for == pc)
      run_host(index);
  }

  // ---- work on a device ----

  void begin_run(int32_t index, int32_t s, int32_t pc, int64_t issued) {
    Actor& actor = actors_[index];
    Stream& stream = actor.streams[s];
    const Program& program = *actor.program;
    double factor = actor.input->slowness * jitter_factor(*actor.input, pc);
    int64_t work = std::llround(program.work_ns[pc] * factor);
    int64_t lag = program.lag_ns[pc] + work - program.work_ns[pc];
    int64_t begin = std::max(stream.free_ns, issued + program.lead_ns[pc]);
    int64_t end = std::max({begin, stream.free_ns + work, issued + lag});
    actor.input->start_ns[pc] = begin;
    stream.busy = true;
    stream.computing = !program.is_copy[pc] && work > 0;
    stream.remaining = static_cast<double>(end - std::min(now_, begin));
    stream.updated_ns = std::min(now_, begin);
    stream.occupancy = stream.computing ? static_cast<double>(work) / std::max<int64_t>(end - begin, 1) : 0;
    stream.occupancy = std::min(stream.occupancy, 1.0);
    stream.rate = rate_of(actor, s);
    schedule_run(index, s);
    if (stream.computing)
      retime(index, s);
  }

  void end_run(int32_t index, int32_t s) {
    Stream& stream = actors_[index].streams[s];
    bool was_computing = stream.computing;
    stream.busy = stream.computing = false;
    ++stream.version;
    stream.free_ns = now_;
    int32_t pc = stream.queue.front();
    stream.queue.pop_front();
    todo_.push_back({index, s});
    complete(index, pc, now_);
    if (was_computing)
      retime(index, s);
  }

  // Streams that compute at once share the device; a collective beside them takes its part of the multiprocessors.
  double rate_of(const Actor& actor, int32_t s) const {
    const Stream& stream = actor.streams[s];
    if (!stream.computing)
      return 1;
    double others = 0;
    for (size_t i = 0; i < actor.streams.size(); ++i)
      if (static_cast<int32_t>(i) != s && actor.streams[i].computing)
        others += actor.streams[i].occupancy;
    double slowdown = (1 + others) / std::max(1 - actor.comm_share, MIN_RATE);
    return 1 / (1 + stream.occupancy * (slowdown - 1));
  }

  void schedule_run(int32_t index, int32_t s) {
    Stream& stream = actors_[index].streams[s];
    double end = static_cast<double>(stream.updated_ns) + stream.remaining / stream.rate;
    push(std::llround(end), RUN_DONE, index, s, ++stream.version);
  }

  void retime(int32_t index, int32_t except = -1) {
    Actor& actor = actors_[index];
    for (size_t i = 0; i < actor.streams.size(); ++i) {
      Stream& stream = actor.streams[i];
      int32_t s = static_cast<int32_t>(i);
      if (s == except || !stream.computing)
        continue;
      double rate = rate_of(actor, s);
      if (rate == stream.rate)
        continue;
      stream.remaining = std::max(stream.remaining - (now_ - stream.updated_ns) * stream.rate, 0.0);
      stream.updated_ns = now_;
      stream.rate = rate;
      schedule_run(index, s);
    }
  }

  // ---- meetings ----

  void begin_call(int32_t index, int32_t s, int32_t pc, int64_t arrival) {
    Actor& actor = actors_[index];
    Stream& stream = actor.streams[s];
    const Program& program = *actor.program;
    actor.input->start_ns[pc] = arrival;
    stream.busy = true;
    stream.outstanding = program.count[pc];
    double share = 0;
    for (int32_t row = program.arg[pc]; row < program.arg[pc] + program.count[pc]; ++row)
      share = std::max(share, network_.transfers[transfer_of(actor, row)].sm_share);
    actor.comm_share += share;
    if (share > 0)
      retime(index);
    for (int32_t row = program.arg[pc]; row < program.arg[pc] + program.count[pc]; ++row)
      join(index, s, pc, row);
  }

  int32_t transfer_of(const Actor& actor, int32_t row) const {
    return actor.input->transfer_of_pattern[actor.program->row_pattern[row]];
  }

  void join(int32_t index, int32_t s, int32_t pc, int32_t row) {
    Actor& actor = actors_[index];
    Channel& channel = channels_[actor.input->channel_of_edge[actor.program->row_edge[row]]];
    int64_t at = actor.program->row_occurrence[row] - channel.base;
    if (at >= static_cast<int64_t>(channel.pending.size()))
      channel.pending.resize(at + 1);
    Meeting& meeting = channel.pending[at];
    meeting.members.push_back({index, s, pc});
    meeting.transfer = transfer_of(actor, row);
    if (static_cast<int32_t>(meeting.members.size()) < channel.slots)
      return;
    for (const Member& member : meeting.members)
      actors_[member.actor].input->meet_ns[member.instruction] = now_;
    start_transfer(std::move(meeting));
    meeting.members.clear();
    meeting.transfer = -2;
    while (!channel.pending.empty() && channel.pending.front().transfer == -2) {
      channel.pending.pop_front();
      ++channel.base;
    }
  }

  // ---- transfers ----

  void start_transfer(Meeting&& meeting) {
    int32_t id;
    if (unused_.empty()) {
      id = static_cast<int32_t>(active_.size());
      active_.emplace_back();
    } else {
      id = unused_.back();
      unused_.pop_back();
    }
    Active& active = active_[id];
    active.members = std::move(meeting.members);
    active.transfer = meeting.transfer;
    const TransferInput& transfer = network_.transfers[active.transfer];
    active.remaining = transfer.work_ns;
    active.speed = 1;
    active.on_wire = false;
    int64_t ready = now_ + std::llround(transfer.latency_ns);
    if (transfer.work_ns > 0)
      push(ready, NET_START, id, 0, 0);
    else
      push(ready, NET_DONE, id, 0, ++active.version);
  }

  void go_on_wire(int32_t id) {
    Active& active = active_[id];
    active.on_wire = true;
    active.updated_ns = now_;
    const TransferInput& transfer = network_.transfers[active.transfer];
    for (int32_t i = 0; i < transfer.num_links; ++i)
      on_link_[network_.links[transfer.first_link + i]].push_back(id);
    active.speed = 0;  // so that sharing sets it again
    share_links(transfer, id);
  }

  void end_transfer(int32_t id) {
    // Copied out: completing may start transfers, which may move `active_`.
    std::vector<Member> members = std::move(active_[id].members);
    const TransferInput& transfer = network_.transfers[active_[id].transfer];
    bool was_on_wire = active_[id].on_wire;
    active_[id].members.clear();
    ++active_[id].version;
    unused_.push_back(id);
    if (was_on_wire) {
      for (int32_t i = 0; i < transfer.num_links; ++i) {
        auto& list = on_link_[network_.links[transfer.first_link + i]];
        list.erase(std::find(list.begin(), list.end(), id));
      }
      share_links(transfer, -1);
    }
    for (const Member& member : members)
      leave(member);
  }

  void leave(const Member& member) {
    Actor& actor = actors_[member.actor];
    Stream& stream = actor.streams[member.stream];
    if (--stream.outstanding > 0)
      return;
    const Program& program = *actor.program;
    double share = 0;
    int32_t pc = member.instruction;
    for (int32_t row = program.arg[pc]; row < program.arg[pc] + program.count[pc]; ++row)
      share = std::max(share, network_.transfers[transfer_of(actor, row)].sm_share);
    actor.comm_share = std::max(actor.comm_share - share, 0.0);
    stream.busy = false;
    stream.free_ns = now_;
    stream.queue.pop_front();
    todo_.push_back({member.actor, member.stream});
    complete(member.actor, pc, now_);
    if (share > 0)
      retime(member.actor);
  }

  // Max-min fair speeds for the transfers that share links, directly or through others, with `transfer`: all speeds
  // grow together, and those on a link that is full, or at full speed, stop growing.
  void share_links(const TransferInput& transfer, int32_t joined) {
    collect(transfer, joined);
    if (together_.empty())
      return;
    if (together_.size() == 1)
      return set_speed(together_[0], 1);
    for (int32_t link : shared_links_)
      link_left_[link] = 1;
    speeds_.assign(together_.size(), 0);
    frozen_.assign(together_.size(), 0);
    size_t growing = together_.size();
    while (growing > 0) {
      double step = grow_by();
      growing -= freeze(step);
    }
    for (size_t i = 0; i < together_.size(); ++i)
      set_speed(together_[i], speeds_[i]);
  }

  void collect(const TransferInput& transfer, int32_t joined) {
    together_.clear();
    shared_links_.clear();
    ++mark_;
    if (joined >= 0) {
      active_[joined].mark = mark_;
      together_.push_back(joined);
    }
    reach(transfer);
    for (size_t i = 0; i < together_.size(); ++i)
      reach(network_.transfers[active_[together_[i]].transfer]);
    position_.resize(std::max(position_.size(), active_.size()));
    for (size_t i = 0; i < together_.size(); ++i)
      position_[together_[i]] = static_cast<int32_t>(i);
  }

  void reach(const TransferInput& transfer) {
    for (int32_t i = 0; i < transfer.num_links; ++i) {
      int32_t link = network_.links[transfer.first_link + i];
      if (link_mark_[link] == mark_)
        continue;
      link_mark_[link] = mark_;
      shared_links_.push_back(link);
      for (int32_t id : on_link_[link]) {
        if (active_[id].mark != mark_) {
          active_[id].mark = mark_;
          together_.push_back(id);
        }
      }
    }
  }

  double load_on(int32_t id, int32_t link) const {
    const TransferInput& transfer = network_.transfers[active_[id].transfer];
    for (int32_t i = 0; i < transfer.num_links; ++i)
      if (network_.links[transfer.first_link + i] == link)
        return network_.loads[transfer.first_link + i];
    return 0;
  }

  double growing_load(int32_t link) const {
    double load = 0;
    for (int32_t id : on_link_[link])
      if (!frozen_[position_[id]])
        load += load_on(id, link);
    return load;
  }

  double grow_by() const {
    double step = 1;
    for (size_t i = 0; i < together_.size(); ++i)
      if (!frozen_[i])
        step = std::min(step, 1 - speeds_[i]);
    for (int32_t link : shared_links_)
      if (double load = growing_load(link); load > 0)
        step = std::min(step, std::max(link_left_[link], 0.0) / load);
    return step;
  }

  // Returns how many stopped growing: at least one, so that the loop ends.
  size_t freeze(double step) {
    constexpr double tiny = 1e-9;
    for (int32_t link : shared_links_)
      link_left_[link] -= step * growing_load(link);
    size_t stopped = 0;
    for (size_t i = 0; i < together_.size(); ++i)
      if (!frozen_[i])
        speeds_[i] += step;
    std::vector<uint8_t> stop(together_.size(), 0);
    for (int32_t link : shared_links_)
      if (link_left_[link] <= tiny)
        for (int32_t id : on_link_[link])
          stop[position_[id]] |= !frozen_[position_[id]] && load_on(id, link) > 0;
    for (size_t i = 0; i < together_.size(); ++i) {
      if (!frozen_[i] && (stop[i] || speeds_[i] >= 1 - tiny)) {
        frozen_[i] = 1;
        ++stopped;
      }
    }
    if (stopped == 0) {
      for (size_t i = 0; i < together_.size(); ++i)
        if (!frozen_[i])
          frozen_[i] = 1, ++stopped;
    }
    return stopped;
  }

  void set_speed(int32_t id, double speed) {
    Active& active = active_[id];
    if (speed == active.speed)
      return;
    active.remaining = std::max(active.remaining - (now_ - active.updated_ns) * active.speed, 0.0);
    active.updated_ns = now_;
    active.speed = std::max(speed, 1e-6);
    push(now_ + std::llround(active.remaining / active.speed), NET_DONE, id, 0, ++active.version);
  }

  // ---- the end ----

  int64_t report(Stuck* stuck, int64_t max_stuck) const {
    int64_t count = 0;
    for (size_t i = 0; i < actors_.size(); ++i) {
      const Actor& actor = actors_[i];
      auto add = [&](int32_t stream, int64_t pc) {
        if (count < max_stuck)
          stuck[count] = {static_cast<int32_t>(i), stream, pc};
        ++count;
      };
      if (actor.pc < actor.program->num_instructions)
        add(-1, actor.pc);
      for (size_t s = 0; s < actor.streams.size(); ++s)
        if (!actor.streams[s].queue.empty())
          add(static_cast<int32_t>(s), actor.streams[s].queue.front());
    }
    return count;
  }

  const Network& network_;
  std::vector<Actor> actors_;
  std::vector<Channel> channels_;
  std::vector<Active> active_;
  std::vector<int32_t> unused_;
  std::vector<std::vector<int32_t>> on_link_;
  std::priority_queue<Event, std::vector<Event>, Later> events_;
  std::vector<std::pair<int32_t, int32_t>> todo_;
  int64_t now_ = 0;
  uint64_t next_sequence_ = 0;

  // Scratch of share_links.
  uint32_t mark_ = 0;
  std::vector<uint32_t> link_mark_;
  std::vector<double> link_left_;
  std::vector<int32_t> together_, shared_links_, position_;
  std::vector<double> speeds_;
  std::vector<uint8_t> frozen_;
};

}  // namespace

extern "C" int64_t sandtable_clock(
    const Program* programs, const ActorInput* actors, int32_t num_actors, const Network* network, Stuck* stuck,
    int64_t max_stuck) {
  return Clock(programs, actors, num_actors, *network).run(stuck, max_stuck);
}
