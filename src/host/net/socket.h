// A socket (or other descriptor) with one owner. Close-on-exec, and harmless in a forked child: the child's
// copies are closed as it is forked, so that a child that lives on neither hides the death of its parent from
// the peers nor disturbs its connections.
//
// Thread safety: a Socket has one user at a time.
#pragma once

#include <utility>

namespace kaitian::host::net {

class Socket {
 public:
  Socket() = default;
  /// Takes `descriptor`; -1 means none.
  explicit Socket(int descriptor);
  ~Socket() { close(); }
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    if (this != &other) {
      close();
      descriptor_ = std::exchange(other.descriptor_, -1);
    }
    return *this;
  }

  int get() const noexcept { return descriptor_; }
  bool valid() const noexcept { return descriptor_ >= 0; }
  void close() noexcept;

 private:
  int descriptor_ = -1;
};

}  // namespace kaitian::host::net
