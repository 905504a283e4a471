#include "base/host_group.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>

namespace pbx {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kHeader = 4096;
constexpr size_t kWhyBytes = 240;
constexpr int kSpins = 200;    // some 10 us: longer spins took the core from who was awaited
constexpr int kSleepMs = 100;  // between looks at whether the others live

uint64_t NowNs() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

uint64_t RandomNumber() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

Status SystemError(const char* what) {
  return Error(Code::kIOError, "memory shared with other ranks: %s: %s", what,
               std::strerror(errno));
}

struct alignas(kLine) MemberState {
  std::atomic<int32_t> pid;
  std::atomic<uint32_t> left;  // 1 once `why` is written
  char why[kWhyBytes];
};

MemberState* StateOf(unsigned char* base, int member) {
  return reinterpret_cast<MemberState*>(base + kHeader) + member;
}

}  // namespace

struct HostGroup::Shared {
  std::atomic<uint64_t> token;
  uint64_t window;
  int32_t members, lanes;
};

struct alignas(kLine) HostGroup::Bell {
  std::atomic<uint32_t> rung;
  std::atomic<uint32_t> asleep;
};

// Bytes written and read since ever; what lies between is in the ring.
struct HostGroup::Ring {
  alignas(kLine) std::atomic<uint64_t> written;
  alignas(kLine) std::atomic<uint64_t> read;
};

struct HostGroup::Lane {
  std::atomic<uint64_t> sent_bytes{0}, ns{0}, waiting_ns{0}, waits{0};
  std::vector<float> parts;  // of a Sum
};

static_assert(std::atomic<uint64_t>::is_always_lock_free, "shared between processes");

HostGroup::HostGroup(int fd, int member, int lanes, std::vector<std::string> names,
                     size_t window_bytes)
    : fd_(fd),
      member_(member),
      lanes_(lanes),
      names_(std::move(names)),
      window_(window_bytes != 0 ? window_bytes : WindowFor(names_.size())),
      processes_(names_.size(), -1) {
  for (int lane = 0; lane < lanes; ++lane) of_lane_.push_back(std::make_unique<Lane>());
}

HostGroup::~HostGroup() {
  for (const int process : processes_) {
    if (process >= 0) ::close(process);
  }
  if (base_ != nullptr) ::munmap(base_, SizeOf(members(), lanes_, window_));
  ::close(fd_);
}

size_t HostGroup::SizeOf(int members, int lanes, size_t window_bytes) {
  const auto m = static_cast<size_t>(members), l = static_cast<size_t>(lanes);
  return kHeader + m * sizeof(MemberState) + l * m * sizeof(Bell) +
         l * m * m * (sizeof(Ring) + window_bytes);
}

Result<std::unique_ptr<HostGroup>> HostGroup::Create(int lanes, std::vector<std::string> names,
                                                     size_t window_bytes) {
  const int fd = ::memfd_create("paddlebox-ranks", MFD_CLOEXEC);
  if (fd < 0) return SystemError("memfd_create");
  std::unique_ptr<HostGroup> group(new HostGroup(fd, 0, lanes, std::move(names), window_bytes));
  PBX_RETURN_IF_ERROR(group->Map(true));
  return Result<std::unique_ptr<HostGroup>>(std::move(group));
}

Result<std::unique_ptr<HostGroup>> HostGroup::Open(const std::string& where, int member, int lanes,
                                                   std::vector<std::string> names,
                                                   size_t window_bytes) {
  const size_t space = where.find(' ');
  const std::string path = where.substr(0, space);
  const uint64_t token =
      space == std::string::npos ? 0 : std::strtoull(where.c_str() + space, nullptr, 16);
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return SystemError(path.c_str());
  std::unique_ptr<HostGroup> group(
      new HostGroup(fd, member, lanes, std::move(names), window_bytes));
  PBX_RETURN_IF_ERROR(group->Map(false));
  const auto* shared = reinterpret_cast<const Shared*>(group->base_);
  if (shared->token != token || shared->members != group->members() || shared->lanes != lanes ||
      shared->window != group->window_) {
    return Error(Code::kIOError, "%s is not the memory that rank '%s' shares", path.c_str(),
                 group->names_[0].c_str());
  }
  return Result<std::unique_ptr<HostGroup>>(std::move(group));
}

Status HostGroup::Map(bool create) {
  const size_t size = SizeOf(members(), lanes_, window_);
  if (create) {
    if (::ftruncate(fd_, static_cast<off_t>(size)) != 0) return SystemError("ftruncate");
  } else {
    struct stat found = {};
    if (::fstat(fd_, &found) != 0) return SystemError("fstat");
    if (!S_ISREG(found.st_mode) || static_cast<size_t>(found.st_size) != size) {
      return Error(Code::kIOError, "memory shared with other ranks: found %lld bytes, expected %zu",
                   static_cast<long long>(found.st_size), size);
    }
  }
  void* base = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (base == MAP_FAILED) return SystemError("mmap");
  base_ = static_cast<unsigned char*>(base);
  StateOf(base_, member_)->pid = static_cast<int32_t>(::getpid());
  auto* shared = reinterpret_cast<Shared*>(base_);
  if (create) {  // the rest is zeros, which is how all of it begins
    shared->window = window_;
    shared->members = members();
    shared->lanes = lanes_;
    shared->token = RandomNumber();
  }
  return Status::Ok();
}

std::string HostGroup::where() const {
  char text[96];
  std::snprintf(text, sizeof(text), "/proc/%d/fd/%d %llx", static_cast<int>(::getpid()), fd_,
                static_cast<unsigned long long>(reinterpret_cast<Shared*>(base_)->token.load()));
  return text;
}

HostGroup::Bell* HostGroup::BellOf(int lane, int member) const {
  auto* bells = reinterpret_cast<Bell*>(StateOf(base_, members()));
  return bells + lane * members() + member;
}

HostGroup::Ring* HostGroup::RingOf(int lane, int from, int to) const {
  auto* rings = reinterpret_cast<unsigned char*>(BellOf(lanes_, 0));
  const auto m = static_cast<size_t>(members());
  const size_t at =
      (static_cast<size_t>(lane) * m + static_cast<size_t>(from)) * m + static_cast<size_t>(to);
  return reinterpret_cast<Ring*>(rings + at * (sizeof(Ring) + window_));
}

Status HostGroup::Watch() {
  for (int peer = 0; peer < members(); ++peer) {
    if (peer == member_) continue;
    const int pid = StateOf(base_, peer)->pid;
    processes_[static_cast<size_t>(peer)] = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
    if (processes_[static_cast<size_t>(peer)] < 0) return SystemError("pidfd_open");
  }
  return Status::Ok();
}

void HostGroup::RingBell(int lane, int member) const {
  Bell* bell = BellOf(lane, member);
  bell->rung.fetch_add(1);
  if (bell->asleep.load() != 0) {
    ::syscall(SYS_futex, &bell->rung, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
}

// How much there was room for.
size_t HostGroup::Write(int lane, int to, const unsigned char* bytes, size_t size) const {
  Ring* ring = RingOf(lane, member_, to);
  unsigned char* data = reinterpret_cast<unsigned char*>(ring) + sizeof(Ring);
  const uint64_t written = ring->written.load(std::memory_order_relaxed);
  const size_t n = std::min(size, window_ - static_cast<size_t>(written - ring->read.load()));
  if (n == 0) return 0;
  const size_t at = static_cast<size_t>(written) % window_, first = std::min(n, window_ - at);
  std::memcpy(data + at, bytes, first);
  std::memcpy(data, bytes + first, n - first);
  ring->written.store(written + n);
  return n;
}

// How much there was.
size_t HostGroup::Read(int lane, int from, unsigned char* bytes, size_t size) const {
  Ring* ring = RingOf(lane, from, member_);
  const unsigned char* data = reinterpret_cast<unsigned char*>(ring) + sizeof(Ring);
  const uint64_t read = ring->read.load(std::memory_order_relaxed);
  const size_t n = std::min(size, static_cast<size_t>(ring->written.load() - read));
  if (n == 0) return 0;
  const size_t at = static_cast<size_t>(read) % window_, first = std::min(n, window_ - at);
  std::memcpy(bytes, data + at, first);
  std::memcpy(bytes + first, data, n - first);
  ring->read.store(read + n);
  return n;
}

Status HostGroup::CheckPeer(int peer) const {
  const MemberState* state = StateOf(base_, peer);
  const char* name = names_[static_cast<size_t>(peer)].c_str();
  if (state->left.load() != 0) {
    return Error(Code::kPeerGone, "%s has left the job: %s", name, state->why);
  }
  pollfd ended = {processes_[static_cast<size_t>(peer)], POLLIN, 0};
  if (ended.fd >= 0 && ::poll(&ended, 1, 0) > 0) {
    return Error(Code::kPeerGone, "%s (process %d) has ended in the middle of the job: see its log",
                 name, state->pid.load());
  }
  return Status::Ok();
}

// Until the bell has been rung since `rung` was read, or a tenth of a second: false then.
bool HostGroup::Sleep(int lane, uint32_t rung) const {
  Bell* bell = BellOf(lane, member_);
  for (int spin = 0; spin < kSpins; ++spin) {
    if (bell->rung.load() != rung) return true;
    __builtin_ia32_pause();
  }
  bell->asleep.store(1);
  const timespec limit = {0, kSleepMs * 1000000L};
  const long outcome = ::syscall(SYS_futex, &bell->rung, FUTEX_WAIT, rung, &limit, nullptr, 0);
  const bool woken = outcome == 0 || errno == EAGAIN;
  bell->asleep.store(0);
  return woken;
}

// One of those that are awaited that has left or, looking closely, ended; else -1.
int HostGroup::GoneOf(const std::vector<bool>& awaited, bool closely) const {
  for (int peer = 0; peer < members(); ++peer) {
    if (!awaited[static_cast<size_t>(peer)]) continue;
    if (!closely && StateOf(base_, peer)->left.load() == 0) continue;
    if (!CheckPeer(peer).ok()) return peer;
  }
  return -1;
}

namespace {

// A message on its way between two members: its size, then its bytes.
struct Message {
  uint64_t size = 0;
  size_t done = 0;  // of both
  bool complete(size_t bytes) const { return done == sizeof(size) + bytes; }
};

}  // namespace

Status HostGroup::Move(int lane, const std::vector<Bytes>& out, const std::vector<Bytes>& into,
                       const GoOn& go_on) {
  constexpr size_t kHead = sizeof(uint64_t);
  std::vector<Message> sending(names_.size()), receiving(names_.size());
  std::vector<bool> awaited(names_.size());
  awaited[static_cast<size_t>(member_)] = true;  // by itself, should it leave
  int gone = -1;
  for (;;) {
    const uint32_t rung = BellOf(lane, member_)->rung.load();
    bool moved = false, complete = true;
    for (int turn = 1; turn < members(); ++turn) {
      const int peer = (member_ + turn) % members();  // not all begin with the same one
      const auto at = static_cast<size_t>(peer);
      Message &send = sending[at], &receive = receiving[at];
      const size_t before = send.done + receive.done;
      send.size = out[at].second;
      if (send.done < kHead) {
        const auto* head = reinterpret_cast<const unsigned char*>(&send.size);
        send.done += Write(lane, peer, head + send.done, kHead - send.done);
      }
      if (send.done >= kHead) {
        const size_t from = send.done - kHead;
        send.done += Write(lane, peer, out[at].first + from, out[at].second - from);
      }
      if (receive.done < kHead) {
        auto* head = reinterpret_cast<unsigned char*>(&receive.size);
        receive.done += Read(lane, peer, head + receive.done, kHead - receive.done);
        if (receive.done == kHead && receive.size != into[at].second) {
          return Error(Code::kInvalidArgument, "%s sends %llu bytes, expected %zu",
                       names_[at].c_str(), static_cast<unsigned long long>(receive.size),
                       into[at].second);
        }
      }
      if (receive.done >= kHead) {
        const size_t from = receive.done - kHead;
        receive.done += Read(lane, peer, into[at].first + from, into[at].second - from);
      }
      if (send.done + receive.done != before) {
        moved = true;
        RingBell(lane, peer);
      }
      awaited[at] = !send.complete(out[at].second) || !receive.complete(into[at].second);
      complete = complete && !awaited[at];
    }
    if (complete) return Status::Ok();
    if (moved) continue;
    // Whatever it wrote before it went has been read by now.
    if (gone >= 0 && awaited[static_cast<size_t>(gone)]) return CheckPeer(gone);
    const uint64_t begin = NowNs();
    const bool rang = Sleep(lane, rung);
    of_lane_[static_cast<size_t>(lane)]->waiting_ns += NowNs() - begin;
    ++of_lane_[static_cast<size_t>(lane)]->waits;
    if (!rang && go_on != nullptr && !go_on()) {
      return Error(Code::kPeerGone, "the wait for other ranks was broken off");
    }
    gone = GoneOf(awaited, !rang);
  }
}

Status HostGroup::Swap(int lane, const std::vector<Bytes>& out, const std::vector<Bytes>& into,
                       const GoOn& go_on) {
  const auto me = static_cast<size_t>(member_);
  if (lane < 0 || lane >= lanes_ || out.size() != names_.size() || into.size() != names_.size()) {
    return Error(Code::kInvalidArgument, "lane %d of %d: %zu arrays out and %zu in, expected %zu",
                 lane, lanes_, out.size(), into.size(), names_.size());
  }
  if (out[me].second != into[me].second) {
    return Error(Code::kInvalidArgument, "%s has %zu bytes for itself, expected %zu",
                 names_[me].c_str(), out[me].second, into[me].second);
  }
  Lane* of_lane = of_lane_[static_cast<size_t>(lane)].get();
  const uint64_t begin = NowNs();
  if (out[me].second != 0) std::memmove(into[me].first, out[me].first, out[me].second);
  const Status status = Move(lane, out, into, go_on);
  of_lane->ns += NowNs() - begin;
  for (size_t peer = 0; peer < out.size(); ++peer) {
    if (peer != me) of_lane->sent_bytes += out[peer].second;
  }
  return status;
}

Status HostGroup::Sum(int lane, float* values, size_t n, const GoOn& go_on) {
  if (lane < 0 || lane >= lanes_) {
    return Error(Code::kInvalidArgument, "lane %d of %d", lane, lanes_);
  }
  const size_t m = names_.size(), me = static_cast<size_t>(member_);
  const auto first = [&](size_t member) { return n * member / m; };
  const auto slice = [&](size_t member) -> Bytes {
    return {reinterpret_cast<unsigned char*>(values + first(member)),
            (first(member + 1) - first(member)) * sizeof(float)};
  };
  const size_t mine = first(me + 1) - first(me);
  std::vector<float>& parts = of_lane_[static_cast<size_t>(lane)]->parts;  // (M, mine)
  parts.resize(m * mine);
  std::vector<Bytes> slices(m), of_mine(m), sums(m, slice(me));
  for (size_t member = 0; member < m; ++member) {
    slices[member] = slice(member);
    of_mine[member] = {reinterpret_cast<unsigned char*>(parts.data() + member * mine),
                       mine * sizeof(float)};
  }
  PBX_RETURN_IF_ERROR(Swap(lane, slices, of_mine, go_on));
  float* sum = values + first(me);
  std::copy_n(parts.data(), mine, sum);
  for (size_t member = 1; member < m; ++member) {
    const float* part = parts.data() + member * mine;
    for (size_t i = 0; i < mine; ++i) sum[i] += part[i];
  }
  return Swap(lane, sums, slices, go_on);
}

void HostGroup::Leave(const std::string& why) {
  MemberState* state = StateOf(base_, member_);
  if (state->left.load() != 0) return;
  std::snprintf(state->why, kWhyBytes, "%s", why.c_str());
  state->left.store(1);
  for (int lane = 0; lane < lanes_; ++lane) {
    for (int peer = 0; peer < members(); ++peer) RingBell(lane, peer);
  }
}

LaneCounters HostGroup::counters(int lane) const {
  const Lane& found = *of_lane_[static_cast<size_t>(lane)];
  return {found.sent_bytes, found.ns, found.waiting_ns, found.waits};
}

}  // namespace pbx
