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
constexpr int kSpins = 200;    // about 10 us; with longer spins, the awaited process lost its core
constexpr int kSleepMs = 100;  // between two checks that the other members are alive

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
  int32_t members, channels;
};

struct alignas(kLine) HostGroup::Bell {
  std::atomic<uint32_t> rung;
  std::atomic<uint32_t> asleep;
};

// Bytes written and read since the start. The ring holds the bytes in between.
struct HostGroup::Ring {
  alignas(kLine) std::atomic<uint64_t> written;
  alignas(kLine) std::atomic<uint64_t> read;
};

struct HostGroup::Channel {
  std::atomic<uint64_t> sent_bytes{0}, ns{0}, waiting_ns{0}, waits{0};
  std::vector<float> parts;  // buffer of Sum
};

static_assert(std::atomic<uint64_t>::is_always_lock_free, "shared between processes");

HostGroup::HostGroup(int fd, int member, int channels, std::vector<std::string> names,
                     size_t window_bytes)
    : fd_(fd),
      member_(member),
      channels_(channels),
      names_(std::move(names)),
      window_(window_bytes != 0 ? window_bytes : WindowFor(names_.size())),
      processes_(names_.size(), -1) {
  for (int channel = 0; channel < channels; ++channel)
    of_channel_.push_back(std::make_unique<Channel>());
}

HostGroup::~HostGroup() {
  for (const int process : processes_) {
    if (process >= 0) ::close(process);
  }
  if (base_ != nullptr) ::munmap(base_, SizeOf(members(), channels_, window_));
  ::close(fd_);
}

size_t HostGroup::SizeOf(int members, int channels, size_t window_bytes) {
  const auto m = static_cast<size_t>(members), c = static_cast<size_t>(channels);
  return kHeader + m * sizeof(MemberState) + c * m * sizeof(Bell) +
         c * m * m * (sizeof(Ring) + window_bytes);
}

Result<std::unique_ptr<HostGroup>> HostGroup::Create(int channels, std::vector<std::string> names,
                                                     size_t window_bytes) {
  const int fd = ::memfd_create("paddlebox-ranks", MFD_CLOEXEC);
  if (fd < 0) return SystemError("memfd_create");
  std::unique_ptr<HostGroup> group(new HostGroup(fd, 0, channels, std::move(names), window_bytes));
  PBX_RETURN_IF_ERROR(group->Map(true));
  return Result<std::unique_ptr<HostGroup>>(std::move(group));
}

Result<std::unique_ptr<HostGroup>> HostGroup::Open(const std::string& where, int member,
                                                   int channels, std::vector<std::string> names,
                                                   size_t window_bytes) {
  const size_t space = where.find(' ');
  const std::string path = where.substr(0, space);
  const uint64_t token =
      space == std::string::npos ? 0 : std::strtoull(where.c_str() + space, nullptr, 16);
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return SystemError(path.c_str());
  std::unique_ptr<HostGroup> group(
      new HostGroup(fd, member, channels, std::move(names), window_bytes));
  PBX_RETURN_IF_ERROR(group->Map(false));
  const auto* shared = reinterpret_cast<const Shared*>(group->base_);
  if (shared->token != token || shared->members != group->members() ||
      shared->channels != channels || shared->window != group->window_) {
    return Error(Code::kIOError, "%s is not the memory that rank '%s' shares", path.c_str(),
                 group->names_[0].c_str());
  }
  return Result<std::unique_ptr<HostGroup>>(std::move(group));
}

Status HostGroup::Map(bool create) {
  const size_t size = SizeOf(members(), channels_, window_);
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
  if (create) {  // the other bytes are zero, which is their initial value
    shared->window = window_;
    shared->members = members();
    shared->channels = channels_;
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

HostGroup::Bell* HostGroup::BellOf(int channel, int member) const {
  auto* bells = reinterpret_cast<Bell*>(StateOf(base_, members()));
  return bells + channel * members() + member;
}

HostGroup::Ring* HostGroup::RingOf(int channel, int from, int to) const {
  auto* rings = reinterpret_cast<unsigned char*>(BellOf(channels_, 0));
  const auto m = static_cast<size_t>(members());
  const size_t at =
      (static_cast<size_t>(channel) * m + static_cast<size_t>(from)) * m + static_cast<size_t>(to);
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

void HostGroup::RingBell(int channel, int member) const {
  Bell* bell = BellOf(channel, member);
  bell->rung.fetch_add(1);
  if (bell->asleep.load() != 0) {
    ::syscall(SYS_futex, &bell->rung, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
}

// Writes as many bytes as there is room for. Returns their number.
size_t HostGroup::Write(int channel, int to, const unsigned char* bytes, size_t size) const {
  Ring* ring = RingOf(channel, member_, to);
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

// Reads as many bytes as there are. Returns their number.
size_t HostGroup::Read(int channel, int from, unsigned char* bytes, size_t size) const {
  Ring* ring = RingOf(channel, from, member_);
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

// Waits until the bell rings after the value `rung` was read. Returns false after a tenth of a
// second.
bool HostGroup::Sleep(int channel, uint32_t rung) const {
  Bell* bell = BellOf(channel, member_);
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

// An awaited member that has left or, if `closely` is set, has ended; -1 if there is none.
int HostGroup::GoneOf(const std::vector<bool>& awaited, bool closely) const {
  for (int peer = 0; peer < members(); ++peer) {
    if (!awaited[static_cast<size_t>(peer)]) continue;
    if (!closely && StateOf(base_, peer)->left.load() == 0) continue;
    if (!CheckPeer(peer).ok()) return peer;
  }
  return -1;
}

namespace {

// Progress of a message between two members: its size is sent first, then its bytes.
struct Message {
  uint64_t size = 0;
  size_t done = 0;  // bytes sent or received, including those of the size
  bool complete(size_t bytes) const { return done == sizeof(size) + bytes; }
};

}  // namespace

Status HostGroup::Move(int channel, const std::vector<Bytes>& out, const Room& room,
                       const GoOn& go_on) {
  constexpr size_t kHead = sizeof(uint64_t);
  std::vector<Message> sending(names_.size()), receiving(names_.size());
  std::vector<Bytes> into(names_.size());  // set when the size of a message has arrived
  std::vector<bool> awaited(names_.size());
  awaited[static_cast<size_t>(member_)] = true;  // so that Leave ends its own wait
  int gone = -1;
  for (;;) {
    const uint32_t rung = BellOf(channel, member_)->rung.load();
    bool moved = false, complete = true;
    for (int turn = 1; turn < members(); ++turn) {
      const int peer = (member_ + turn) % members();  // members start with different peers
      const auto at = static_cast<size_t>(peer);
      Message &send = sending[at], &receive = receiving[at];
      const size_t before = send.done + receive.done;
      send.size = out[at].second;
      if (send.done < kHead) {
        const auto* head = reinterpret_cast<const unsigned char*>(&send.size);
        send.done += Write(channel, peer, head + send.done, kHead - send.done);
      }
      if (send.done >= kHead) {
        const size_t from = send.done - kHead;
        send.done += Write(channel, peer, out[at].first + from, out[at].second - from);
      }
      if (receive.done < kHead) {
        auto* head = reinterpret_cast<unsigned char*>(&receive.size);
        receive.done += Read(channel, peer, head + receive.done, kHead - receive.done);
        if (receive.done == kHead) {
          into[at].second = static_cast<size_t>(receive.size);
          PBX_RETURN_IF_ERROR(room(peer, into[at].second, &into[at].first));
        }
      }
      if (receive.done >= kHead) {
        const size_t from = receive.done - kHead;
        receive.done += Read(channel, peer, into[at].first + from, into[at].second - from);
      }
      if (send.done + receive.done != before) {
        moved = true;
        RingBell(channel, peer);
      }
      awaited[at] = !send.complete(out[at].second) || !receive.complete(into[at].second);
      complete = complete && !awaited[at];
    }
    if (complete) return Status::Ok();
    if (moved) continue;
    // At this point, all bytes that the member wrote before it ended have been read.
    if (gone >= 0 && awaited[static_cast<size_t>(gone)]) return CheckPeer(gone);
    const uint64_t begin = NowNs();
    const bool rang = Sleep(channel, rung);
    of_channel_[static_cast<size_t>(channel)]->waiting_ns += NowNs() - begin;
    ++of_channel_[static_cast<size_t>(channel)]->waits;
    if (!rang && go_on != nullptr && !go_on()) {
      return Error(Code::kPeerGone, "the wait for other ranks was broken off");
    }
    gone = GoneOf(awaited, !rang);
  }
}

Status HostGroup::CheckMessages(int channel, size_t out, size_t into) const {
  if (channel >= 0 && channel < channels_ && out == names_.size() && into == names_.size()) {
    return Status::Ok();
  }
  return Error(Code::kInvalidArgument, "channel %d of %d: %zu arrays out and %zu in, expected %zu",
               channel, channels_, out, into, names_.size());
}

Status HostGroup::Swap(int channel, const std::vector<Bytes>& out, const std::vector<Bytes>& into,
                       const GoOn& go_on) {
  const auto me = static_cast<size_t>(member_);
  PBX_RETURN_IF_ERROR(CheckMessages(channel, out.size(), into.size()));
  if (out[me].second != into[me].second) {
    return Error(Code::kInvalidArgument, "%s has %zu bytes for itself, expected %zu",
                 names_[me].c_str(), out[me].second, into[me].second);
  }
  if (out[me].second != 0) std::memmove(into[me].first, out[me].first, out[me].second);
  const Room exact = [&](int member, size_t size, unsigned char** at) {
    const auto& [first, expected] = into[static_cast<size_t>(member)];
    *at = first;
    if (size == expected) return Status::Ok();
    return Error(Code::kInvalidArgument, "%s sends %zu bytes, expected %zu",
                 names_[static_cast<size_t>(member)].c_str(), size, expected);
  };
  return Exchange(channel, out, exact, go_on);
}

Status HostGroup::Exchange(int channel, const std::vector<Bytes>& out, const Room& room,
                           const GoOn& go_on) {
  const auto me = static_cast<size_t>(member_);
  PBX_RETURN_IF_ERROR(CheckMessages(channel, out.size(), out.size()));
  Channel* of_channel = of_channel_[static_cast<size_t>(channel)].get();
  const uint64_t begin = NowNs();
  const Status status = Move(channel, out, room, go_on);
  of_channel->ns += NowNs() - begin;
  for (size_t peer = 0; peer < out.size(); ++peer) {
    if (peer != me) of_channel->sent_bytes += out[peer].second;
  }
  return status;
}

Status HostGroup::Sum(int channel, float* values, size_t n, const GoOn& go_on) {
  if (channel < 0 || channel >= channels_) {
    return Error(Code::kInvalidArgument, "channel %d of %d", channel, channels_);
  }
  const size_t m = names_.size(), me = static_cast<size_t>(member_);
  const auto first = [&](size_t member) { return n * member / m; };
  const auto slice = [&](size_t member) -> Bytes {
    return {reinterpret_cast<unsigned char*>(values + first(member)),
            (first(member + 1) - first(member)) * sizeof(float)};
  };
  const size_t mine = first(me + 1) - first(me);
  std::vector<float>& parts = of_channel_[static_cast<size_t>(channel)]->parts;  // (M, mine)
  parts.resize(m * mine);
  std::vector<Bytes> slices(m), of_mine(m), sums(m, slice(me));
  for (size_t member = 0; member < m; ++member) {
    slices[member] = slice(member);
    of_mine[member] = {reinterpret_cast<unsigned char*>(parts.data() + member * mine),
                       mine * sizeof(float)};
  }
  PBX_RETURN_IF_ERROR(Swap(channel, slices, of_mine, go_on));
  float* sum = values + first(me);
  std::copy_n(parts.data(), mine, sum);
  for (size_t member = 1; member < m; ++member) {
    const float* part = parts.data() + member * mine;
    for (size_t i = 0; i < mine; ++i) sum[i] += part[i];
  }
  return Swap(channel, sums, slices, go_on);
}

void HostGroup::Leave(const std::string& why) {
  MemberState* state = StateOf(base_, member_);
  if (state->left.load() != 0) return;
  std::snprintf(state->why, kWhyBytes, "%s", why.c_str());
  state->left.store(1);
  for (int channel = 0; channel < channels_; ++channel) {
    for (int peer = 0; peer < members(); ++peer) RingBell(channel, peer);
  }
}

ChannelCounters HostGroup::counters(int channel) const {
  const Channel& found = *of_channel_[static_cast<size_t>(channel)];
  return {found.sent_bytes, found.ns, found.waiting_ns, found.waits};
}

}  // namespace pbx
