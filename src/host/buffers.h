// Memory for units that wait in a window. Freed buffers are kept for the next unit, up to a limit.
//
// Ownership: a Buffer belongs to who holds it; give it back or let it be freed. Thread safety: none.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace kaitian::host {

struct Buffer {
  std::unique_ptr<std::byte[]> memory;
  std::size_t bytes = 0;

  std::byte* data() const noexcept { return memory.get(); }
};

class BufferPool {
 public:
  /// Keeps at most `keep` buffers of each of two sizes; a request is never larger than `largest` bytes.
  BufferPool(std::size_t largest, std::size_t keep) : largest_(largest), keep_(keep) {}

  Buffer take(std::size_t bytes) {
    std::vector<Buffer>& from = bytes <= kSmall ? small_ : large_;
    if (from.empty()) {
      const std::size_t size = bytes <= kSmall ? kSmall : largest_;
      return {std::make_unique_for_overwrite<std::byte[]>(size), size};
    }
    Buffer buffer = std::move(from.back());
    from.pop_back();
    return buffer;
  }

  void give(Buffer buffer) {
    if (!buffer.memory) return;
    std::vector<Buffer>& to = buffer.bytes <= kSmall ? small_ : large_;
    if (to.size() < keep_) to.push_back(std::move(buffer));
  }

 private:
  // Most operations of a training step that are not gradients (barriers, counters, losses) fit.
  static constexpr std::size_t kSmall = 1024;

  std::size_t largest_, keep_;
  std::vector<Buffer> small_, large_;
};

}  // namespace kaitian::host
