#include "base/host_sum.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <string>

namespace pbx {
namespace {

constexpr size_t kBlock = 4096;  // values that stay in the L1 cache while members are added
constexpr size_t kLineValues = 16;

// Location of the first member's memory; fd -1: there is none.
struct Place {
  int32_t pid = 0, fd = -1;
};

void Scale(const std::vector<HostSum::Part>& parts, float scale, float* out) {
  for (const auto& [values, size] : parts) {
    for (size_t i = 0; i < size; ++i) out[i] = values[i] * scale;
    out += size;
  }
}

// Sets `all` (M) to the value `mine` of each member.
template <typename T>
Status ToAll(HostGroup* group, int channel, T mine, std::vector<T>* all,
             const HostGroup::GoOn& go_on) {
  const auto members = static_cast<size_t>(group->members());
  all->assign(members, T());
  std::vector<HostGroup::Bytes> out, into;
  for (T& theirs : *all) {
    out.emplace_back(reinterpret_cast<unsigned char*>(&mine), sizeof(T));
    into.emplace_back(reinterpret_cast<unsigned char*>(&theirs), sizeof(T));
  }
  return group->Swap(channel, out, into, go_on);
}

}  // namespace

void HostSum::Unmap() {
  if (shared_ != nullptr) ::munmap(shared_, mapped_bytes_);
  shared_ = nullptr;
  room_ = 0;
}

float* HostSum::ValuesOf(int member) const {
  return shared_ + (static_cast<size_t>(member) * 2 + turn_ % 2) * room_;
}

// Allocates shared memory for n values, or decides to use messages. Every member decides the same.
Status HostSum::Share(size_t n, const HostGroup::GoOn& go_on) {
  const size_t room = (std::max(n, size_t{1}) + kLineValues - 1) / kLineValues * kLineValues;
  const size_t bytes = static_cast<size_t>(group_->members()) * 2 * room * sizeof(float);
  Unmap();
  if (group_->members() > kMostMembers || bytes > kMostBytes) {
    by_messages_ = true;
    return Status::Ok();
  }
  Place mine;
  if (group_->member() == 0) {
    mine = {static_cast<int32_t>(::getpid()), ::memfd_create("paddlebox-sums", MFD_CLOEXEC)};
    if (mine.fd >= 0 && ::ftruncate(mine.fd, static_cast<off_t>(bytes)) != 0) {
      ::close(mine.fd);
      mine.fd = -1;
    }
  }
  std::vector<Place> places;
  Status status = ToAll(group_, channel_, mine, &places, go_on);
  int fd = mine.fd;
  if (status.ok() && group_->member() != 0 && places[0].fd >= 0) {
    const std::string path =
        "/proc/" + std::to_string(places[0].pid) + "/fd/" + std::to_string(places[0].fd);
    fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  }
  void* base = MAP_FAILED;
  if (status.ok() && fd >= 0) {
    base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  if (base != MAP_FAILED) {
    shared_ = static_cast<float*>(base);
    room_ = room;
    mapped_bytes_ = bytes;
  }
  std::vector<uint8_t> mapped;
  if (status.ok()) {
    status = ToAll(group_, channel_, static_cast<uint8_t>(base != MAP_FAILED), &mapped, go_on);
  }
  if (fd >= 0) ::close(fd);  // the others have opened it by now, or never will
  if (!status.ok()) return status;
  by_messages_ = std::find(mapped.begin(), mapped.end(), uint8_t{0}) != mapped.end();
  if (by_messages_) Unmap();
  return Status::Ok();
}

Status HostSum::Add(const std::vector<Part>& parts, float scale, float* sum,
                    const HostGroup::GoOn& go_on) {
  size_t n = 0;
  for (const Part& part : parts) n += part.second;
  if (!by_messages_ && (shared_ == nullptr || n > room_)) PBX_RETURN_IF_ERROR(Share(n, go_on));
  if (by_messages_) {
    Scale(parts, scale, sum);
    return group_->Sum(channel_, sum, n, go_on);
  }
  // This place has the values of the sum before the last one. All members have read these values: a
  // member reads them before it begins the last sum, and the last sum waited until all members had
  // begun it.
  ++turn_;
  Scale(parts, scale, ValuesOf(group_->member()));
  std::vector<uint64_t> sizes;
  PBX_RETURN_IF_ERROR(ToAll(group_, channel_, static_cast<uint64_t>(n), &sizes, go_on));
  for (size_t member = 0; member < sizes.size(); ++member) {
    if (sizes[member] == n) continue;
    return Error(Code::kInvalidArgument,
                 "rank %zu of this host sums %llu values, expected %zu: do all ranks train the "
                 "same model?",
                 member, static_cast<unsigned long long>(sizes[member]), n);
  }
  for (size_t first = 0; first < n; first += kBlock) {
    const size_t size = std::min(kBlock, n - first);
    float* const total = sum + first;
    std::copy_n(ValuesOf(0) + first, size, total);
    for (int member = 1; member < group_->members(); ++member) {
      const float* const theirs = ValuesOf(member) + first;
      for (size_t i = 0; i < size; ++i) total[i] += theirs[i];
    }
  }
  return Status::Ok();
}

}  // namespace pbx
