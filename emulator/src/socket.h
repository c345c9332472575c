// Unix sockets with abstract names: nothing stays in a file system, whatever happens to the process.
#pragma once

#include <chrono>
#include <string>

namespace kaitian::emulator {

using Deadline = std::chrono::steady_clock::time_point;

/// Owns a descriptor. Movable, not copyable.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();

  int get() const noexcept { return number_; }

 private:
  int number_ = -1;
};

/// Listens under a name that the kernel picks. Errors of all functions here are std::runtime_error.
class Listener {
 public:
  explicit Listener(int backlog);
  /// Hexadecimal; only processes of the same network namespace can connect to it.
  const std::string& name() const noexcept { return name_; }
  Descriptor accept(Deadline deadline) const;

 private:
  Descriptor socket_;
  std::string name_;
};

Descriptor connectTo(const std::string& name);

/// Sends or receives all of a few bytes, blocking until the deadline.
void sendSmall(const Descriptor& socket, const void* data, std::size_t bytes);
void receiveSmall(const Descriptor& socket, void* data, std::size_t bytes, Deadline deadline);

/// Milliseconds for poll(), rounded up; 0 if the deadline has passed.
int millisecondsUntil(Deadline deadline);

[[noreturn]] void throwErrno(const std::string& what);

}  // namespace kaitian::emulator
