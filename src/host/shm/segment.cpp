#include "host/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <system_error>
#include <utility>

namespace kaitian::host::shm {
namespace {

constexpr std::uint64_t kMagic = 0x736e6169746961'6bU;  // "kaitians" in memory
constexpr std::uint32_t kVersion = 1;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr std::size_t kPage = 4096;

Status failed(const char* what, int error) {
  return {Code::resource,
          std::string("shared memory: ") + what + ": " + std::generic_category().message(error)};
}

Status foreign(const std::string& what) {
  return {Code::invalidArgument, "shared memory: what came is not the segment of that rank: " + what};
}

std::size_t pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

// Whoever writes has lines of its own.
// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding)
struct Segment::Header {
  std::uint64_t magic = kMagic;
  std::uint32_t version = kVersion;
  std::int32_t rank = 0;
  std::uint32_t slots = 0, slotBytes = 0;
  net::GroupId group{};
  Marks marks;
  alignas(kLine) std::atomic<std::uint32_t> asleep{0};
  alignas(kLine) std::array<std::atomic<std::uint64_t>, kMostRanks> heard{};
  std::array<Line, kLines> lines;
};

namespace {

std::size_t stampsBytes(const Geometry& geometry) {
  return std::size_t{kRings} * geometry.slots * sizeof(Stamp);
}

/// Header and stamps, in whole pages, so that the rings begin on one.
std::size_t headBytes(const Geometry& geometry) {
  return pages(sizeof(Segment::Header) + stampsBytes(geometry));
}

}  // namespace

static_assert(std::atomic<std::uint64_t>::is_always_lock_free &&
              std::atomic<std::uint32_t>::is_always_lock_free);

std::size_t Segment::sizeOf(const Geometry& geometry) {
  return headBytes(geometry) + pages(std::size_t{kRings} * geometry.slots * geometry.slotBytes);
}

Segment& Segment::operator=(Segment&& other) noexcept {
  if (this == &other) return *this;
  unmap();
  memory_ = std::move(other.memory_);
  geometry_ = other.geometry_;
  base_ = std::exchange(other.base_, nullptr);
  bytes_ = other.bytes_;
  process_ = other.process_;
  reserved_ = other.reserved_;
  return *this;
}

void Segment::unmap() noexcept {
  // In a forked child something else may lie there.
  if (base_ != nullptr && process_ == getpid()) munmap(base_, bytes_);
  base_ = nullptr;
}

Status Segment::open() {
  bytes_ = sizeOf(geometry_);
  void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, memory_.get(), 0);
  if (memory == MAP_FAILED) return failed("mmap", errno);
  base_ = static_cast<std::byte*>(memory);
  process_ = getpid();
  if (madvise(memory, bytes_, MADV_DONTFORK) != 0) return failed("madvise", errno);
  return {};
}

namespace {

/// Beyond this limit ftruncate() is a signal that ends the process.
bool mayGrowTo(std::size_t bytes) {
  rlimit limit{};
  return getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur >= bytes;
}

}  // namespace

Result<Segment> Segment::create(const Geometry& geometry, int rank, const net::GroupId& group) {
  Segment segment;
  if (!mayGrowTo(sizeOf(geometry)))
    return Status(Code::resource, "shared memory: " + std::to_string(sizeOf(geometry)) +
                                      " bytes are more than the largest file that this process may make "
                                      "(ulimit -f)");
  segment.geometry_ = geometry;
  segment.memory_ = net::Socket(memfd_create("kaitian", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!segment.memory_.valid()) return failed("memfd_create", errno);
  const int memory = segment.memory_.get();
  if (ftruncate(memory, static_cast<off_t>(sizeOf(geometry))) != 0) return failed("ftruncate", errno);
  if (fcntl(memory, F_ADD_SEALS, kSeals) != 0) return failed("sealing", errno);
  // posix_fallocate returns the error.
  if (const int error = posix_fallocate(memory, 0, static_cast<off_t>(headBytes(geometry))); error != 0)
    return failed("fallocate", error);
  if (Status s = segment.open(); !s.ok()) return s;
  auto* header = new (segment.base_) Header;
  header->rank = rank;
  header->slots = geometry.slots;
  header->slotBytes = geometry.slotBytes;
  header->group = group;
  return segment;
}

Result<Segment> Segment::map(net::Socket memory, const Geometry& geometry, int rank,
                             const net::GroupId& group) {
  Segment segment;
  segment.memory_ = std::move(memory);
  segment.geometry_ = geometry;
  const int descriptor = segment.memory_.get();
  struct stat facts{};
  if (fstat(descriptor, &facts) != 0) return failed("fstat", errno);
  // Without the seals its owner could shrink it under us.
  if (fcntl(descriptor, F_GET_SEALS) != kSeals) return foreign("its seals differ");
  if (facts.st_size != static_cast<off_t>(sizeOf(geometry)))
    return foreign("it has " + std::to_string(facts.st_size) + " bytes, expected " +
                   std::to_string(sizeOf(geometry)));
  if (Status s = segment.open(); !s.ok()) return s;
  const auto* header = std::launder(reinterpret_cast<const Header*>(segment.base_));
  if (header->magic != kMagic || header->version != kVersion)
    return foreign("layout version " + std::to_string(header->version) + ", expected " +
                   std::to_string(kVersion));
  if (header->rank != rank || header->group != group || header->slots != geometry.slots ||
      header->slotBytes != geometry.slotBytes)
    return foreign("it says rank " + std::to_string(header->rank) + " and " + std::to_string(header->slots) +
                   " slots of " + std::to_string(header->slotBytes) + " bytes");
  segment.memory_.close();  // the mapping is enough
  return segment;
}

Status Segment::reserve() {
  if (reserved_) return {};
  const auto head = static_cast<off_t>(headBytes(geometry_));
  if (const int error = posix_fallocate(memory_.get(), head, static_cast<off_t>(bytes_) - head); error != 0)
    return {Code::resource,
            "shared memory: no " + std::to_string(bytes_ >> 10U) +
                " KiB for the rings of this group: " + std::generic_category().message(error) +
                "; memory counts against this process's control group"};
  reserved_ = true;
  return {};
}

Marks& Segment::marks() const noexcept { return std::launder(reinterpret_cast<Header*>(base_))->marks; }

std::atomic<std::uint32_t>& Segment::asleep() const noexcept {
  return std::launder(reinterpret_cast<Header*>(base_))->asleep;
}

Line& Segment::line(std::uint64_t number) const noexcept {
  return std::launder(reinterpret_cast<Header*>(base_))->lines[number % kLines];
}

std::atomic<std::uint64_t>& Segment::heard(int peer) const noexcept {
  return std::launder(reinterpret_cast<Header*>(base_))->heard[static_cast<std::size_t>(peer)];
}

Stamp& Segment::stamp(Ring ring, std::uint64_t ordinal) const noexcept {
  auto* stamps = reinterpret_cast<Stamp*>(base_ + sizeof(Header));
  return stamps[place(ring, ordinal)];
}

std::byte* Segment::slot(Ring ring, std::uint64_t ordinal) const noexcept {
  return base_ + headBytes(geometry_) + place(ring, ordinal) * geometry_.slotBytes;
}

}  // namespace kaitian::host::shm
