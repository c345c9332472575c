#include "host/net/listener.h"

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

#include "host/net/blocking.h"
#include "kaitian/core/log.h"
#include "kaitian/core/sha256.h"
#include "kaitian/core/wire.h"

namespace kaitian::host {
namespace {

Status failed(const char* what, const std::string& address) {
  return {Code::resource,
          "cannot listen on " + address + ": " + what + ": " + std::generic_category().message(errno)};
}

/// A local socket under a name that nobody can guess; without one the ranks of this host use TCP.
net::Socket listenLocally(std::string& name) {
  std::array<std::byte, 16> random{};
  if (!core::randomBytes(random).ok()) return net::Socket();
  name = "kaitian-" + core::hexOf(random);
  const Result<net::Address> address = net::localAddress(name);
  net::Socket listening(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (address.ok() && listening.valid() &&
      bind(listening.get(), address.value().get(), address.value().size()) == 0 &&
      listen(listening.get(), SOMAXCONN) == 0)
    return listening;
  core::log(core::LogLevel::info, core::Log::kNoRank,
            "no local socket, ranks of this host use TCP: ", std::generic_category().message(errno));
  name.clear();
  return net::Socket();
}

}  // namespace

Result<std::shared_ptr<Listener>> Listener::create(const ListenOptions& options) {
  Result<net::Choice> choice = net::chooseAddress(options);
  if (!choice.ok()) return choice.status();
  net::Address address = choice.value().address;
  net::Socket listening(socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listening.valid()) return failed("socket", toString(address));
  if (bind(listening.get(), address.get(), address.size()) != 0) return failed("bind", toString(address));
  if (listen(listening.get(), SOMAXCONN) != 0) return failed("listen", toString(address));
  socklen_t size = sizeof address.storage;
  if (getsockname(listening.get(), address.get(), &size) != 0)
    return failed("getsockname", toString(address));
  net::Socket event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event.valid()) return failed("eventfd", toString(address));
  core::log(core::LogLevel::info, core::Log::kNoRank, "listening on ", toString(address), ": ",
            choice.value().reason);
  std::string name;
  net::Socket local = listenLocally(name);
  return std::shared_ptr<Listener>(std::make_shared<net::SocketListener>(
      std::move(listening), toString(address), std::move(local), std::move(name), std::move(event)));
}

namespace net {
namespace {

constexpr std::chrono::seconds kGreetingTime{5};
// Out of descriptors accept() fails at once while the socket stays readable.
constexpr std::chrono::milliseconds kNoDescriptorPause{20};
// Strangers beyond this many push out the oldest: half-open connections cannot keep ranks out.
constexpr std::size_t kMostStrangers = 128;

}  // namespace

/// A connection that has not proved yet who it is.
class Stranger {
 public:
  explicit Stranger(Socket connection)
      : socket(std::move(connection)), until(Clock::now() + kGreetingTime), input_(kHelloBytes) {}

  /// Goes on with what has arrived; false when there is nothing more to do with this connection.
  bool advance(SocketListener& listener);

  Socket socket;
  Clock::time_point until;

 private:
  bool hello(SocketListener& listener);
  bool proof();
  bool send(std::span<const std::byte> bytes) const {
    // The first bytes on a new connection always fit into its buffer.
    return ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
           static_cast<ssize_t>(bytes.size());
  }

  std::vector<std::byte> input_;
  std::size_t have_ = 0;
  std::shared_ptr<Attachment> group_;  // after the hello
  Hello hello_;
  Nonce nonce_{};
};

bool Stranger::advance(SocketListener& listener) {
  for (;;) {
    const ssize_t got = recv(socket.get(), input_.data() + have_, input_.size() - have_, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    have_ += static_cast<std::size_t>(got);
    if (have_ < input_.size()) continue;
    return group_ == nullptr ? hello(listener) : proof();
  }
}

bool Stranger::hello(SocketListener& listener) {
  Result<Hello> hello = decodeHello(input_);
  if (!hello.ok()) return false;
  hello_ = hello.value();
  group_ = listener.find(hello_.group);
  if (group_ == nullptr || hello_.to != static_cast<std::uint32_t>(group_->rank_) ||
      hello_.from >= hello_.to || hello_.settings != group_->settings_) {
    return false;
  }
  Result<Nonce> nonce = makeNonce();
  if (!nonce.ok()) return false;
  nonce_ = nonce.value();
  input_.assign(kProofBytes, {});
  have_ = 0;
  return send(encode(Answer{nonce_, proofOf(group_->secret_, Side::accepting, hello_, nonce_)})) &&
         advance(listener);
}

bool Stranger::proof() {
  if (!core::equalInConstantTime(input_, proofOf(group_->secret_, Side::connecting, hello_, nonce_)))
    return false;
  const std::scoped_lock lock(group_->mutex_);
  if (group_->taken_ || !send({&kWelcome, 1})) return false;
  // A rank that connects again has given up its first connection.
  group_->accepted_[hello_.from] = std::move(socket);
  group_->changed_.notify_all();
  return false;
}

std::vector<int> Attachment::wait(Clock::time_point until) {
  std::unique_lock lock(mutex_);
  const auto missing = [this] {
    std::vector<int> ranks;
    for (std::size_t r = 0; r < accepted_.size(); ++r) {
      if (!accepted_[r].valid()) ranks.push_back(static_cast<int>(r));
    }
    return ranks;
  };
  changed_.wait_until(lock, until, [&] { return missing().empty(); });
  return missing();
}

std::vector<Socket> Attachment::take() {
  const std::scoped_lock lock(mutex_);
  taken_ = true;
  return std::move(accepted_);
}

void SocketListener::attach(const GroupId& group, std::shared_ptr<Attachment> attachment) {
  const std::scoped_lock control(control_);
  {
    const std::scoped_lock lock(mutex_);
    waiting_[group] = std::move(attachment);
  }
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
}

void SocketListener::detach(const GroupId& group) {
  const std::scoped_lock control(control_);
  {
    const std::scoped_lock lock(mutex_);
    waiting_.erase(group);
    if (!waiting_.empty()) return;
  }
  wake();
  if (thread_.joinable()) thread_.join();
}

void SocketListener::stop() {
  const std::scoped_lock control(control_);
  {
    const std::scoped_lock lock(mutex_);
    waiting_.clear();
  }
  wake();
  if (thread_.joinable()) thread_.join();
}

void SocketListener::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto put = write(event_.get(), &one, sizeof one);
}

bool SocketListener::idle() {
  const std::scoped_lock lock(mutex_);
  return waiting_.empty();
}

std::shared_ptr<Attachment> SocketListener::find(const GroupId& group) {
  const std::scoped_lock lock(mutex_);
  const auto found = waiting_.find(group);
  return found == waiting_.end() ? nullptr : found->second;
}

void SocketListener::acceptAll(const Socket& listening, std::list<Stranger>& strangers) {
  while (listening.valid()) {
    Socket connection(accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!connection.valid()) {
      if (errno == EMFILE || errno == ENFILE) std::this_thread::sleep_for(kNoDescriptorPause);
      return;
    }
    const bool local = isLocal(connection);
    if (local && !sameUser(connection)) continue;
    const int on = 1;
    if (!local) setsockopt(connection.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (strangers.size() >= kMostStrangers) strangers.pop_front();
    strangers.emplace_back(std::move(connection));
  }
}

void SocketListener::run() {
  std::list<Stranger> strangers;
  while (!idle()) {
    // poll() passes over a descriptor of -1.
    std::vector<pollfd> wanted{
        {event_.get(), POLLIN, 0}, {listening_.get(), POLLIN, 0}, {local_.get(), POLLIN, 0}};
    for (const Stranger& s : strangers) wanted.push_back({s.socket.get(), POLLIN, 0});
    poll(wanted.data(), wanted.size(), strangers.empty() ? -1 : 100);
    std::uint64_t count = 0;
    [[maybe_unused]] const auto got = read(event_.get(), &count, sizeof count);
    const auto now = Clock::now();
    std::erase_if(strangers, [&](Stranger& s) { return now >= s.until || !s.advance(*this); });
    acceptAll(listening_, strangers);
    acceptAll(local_, strangers);
  }
}

}  // namespace net
}  // namespace kaitian::host
