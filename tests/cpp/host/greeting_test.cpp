// Who gets a connection, and who does not.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <thread>

#include "host/net/listener.h"
#include "host/random_exchange.h"
#include "host/rank_group.h"

namespace kaitian::host::net {
namespace {

using std::chrono::milliseconds;

Socket dial(const std::string& where) {
  const Address address = parseAddress(where).value();
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(socket.get(), address.get(), address.size()), 0);
  const timeval limit{10, 0};
  setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  return socket;
}

void put(const Socket& socket, std::span<const std::byte> bytes) {
  send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

/// What comes until the other side closes, at most `most` bytes.
std::vector<std::byte> get(const Socket& socket, std::size_t most) {
  std::vector<std::byte> bytes(most);
  std::size_t have = 0;
  while (have < most) {
    const ssize_t got = recv(socket.get(), bytes.data() + have, most - have, 0);
    if (got <= 0) break;
    have += static_cast<std::size_t>(got);
  }
  bytes.resize(have);
  return bytes;
}

/// A listener with rank 2 of a group attached, which waits for ranks 0 and 1.
class Greeting : public testing::Test {
 protected:
  Greeting()
      : listener_(std::static_pointer_cast<SocketListener>(Listener::create({"", "127.0.0.1"}).value())) {
    listener_->attach(groupIdOf(kSecret), attachment_);
  }
  ~Greeting() override { listener_->detach(groupIdOf(kSecret)); }

  Hello hello(std::uint32_t from, std::uint32_t to = 2) const {
    Hello hello;
    hello.group = groupIdOf(kSecret);
    hello.from = from;
    hello.to = to;
    hello.nonce = makeNonce().value();
    return hello;
  }
  /// Greets as a rank would; the bytes of the welcome, or none.
  std::vector<std::byte> greet(const Hello& hello, const std::string& secret) {
    sockets_.push_back(dial(listener_->address()));
    const Socket& socket = sockets_.back();
    put(socket, encode(hello));
    const auto answer = decodeAnswer(get(socket, kAnswerBytes));
    if (!answer.ok()) return {};
    put(socket, proofOf(secret, Side::connecting, hello, answer.value().nonce));
    return get(socket, 1);
  }
  bool accepted(const Hello& hello, const std::string& secret) { return !greet(hello, secret).empty(); }
  std::vector<int> missing() { return attachment_->wait(Clock::now()); }

  const std::string kSecret = std::string(32, 'x');
  std::shared_ptr<SocketListener> listener_;
  std::shared_ptr<Attachment> attachment_ = std::make_shared<Attachment>(kSecret, core::Digest{}, 2);
  std::vector<Socket> sockets_;
};

TEST_F(Greeting, WhenARankKnowsTheSecret_IsWelcome) {
  EXPECT_TRUE(accepted(hello(1), kSecret));
  EXPECT_EQ(missing(), std::vector<int>{0});
  EXPECT_TRUE(accepted(hello(0), kSecret));
  EXPECT_TRUE(missing().empty());
}

TEST_F(Greeting, WhenTheSecretIsWrong_IsClosed) {
  EXPECT_FALSE(accepted(hello(1), std::string(32, 'y')));
  EXPECT_EQ(missing(), (std::vector<int>{0, 1}));
}

TEST_F(Greeting, WhenRankGroupOrSettingsAreWrong_IsClosedWithoutAnAnswer) {
  EXPECT_FALSE(accepted(hello(2), kSecret));
  EXPECT_FALSE(accepted(hello(0xffff'ffffU), kSecret));
  EXPECT_FALSE(accepted(hello(0, 1), kSecret));
  Hello other = hello(0);
  other.settings[0] = std::byte{1};
  EXPECT_FALSE(accepted(other, kSecret));
  other = hello(0);
  other.group[3] ^= std::byte{1};
  EXPECT_FALSE(accepted(other, kSecret));
  EXPECT_EQ(missing(), (std::vector<int>{0, 1}));
}

TEST_F(Greeting, WhenAProofIsReplayed_IsClosed) {
  const Hello recorded = hello(1);
  sockets_.push_back(dial(listener_->address()));
  put(sockets_.back(), encode(recorded));
  const auto answer = decodeAnswer(get(sockets_.back(), kAnswerBytes)).value();
  const core::Digest proof = proofOf(kSecret, Side::connecting, recorded, answer.nonce);
  sockets_.push_back(dial(listener_->address()));
  put(sockets_.back(), encode(recorded));
  ASSERT_EQ(get(sockets_.back(), kAnswerBytes).size(), kAnswerBytes);
  put(sockets_.back(), proof);
  EXPECT_TRUE(get(sockets_.back(), 1).empty());
}

TEST_F(Greeting, WhenStrangersTalkNonsenseOrNothing_RanksStillGetIn) {
  const std::uint64_t seed = test::newSeed();
  test::Random random(seed);
  for (int i = 0; i < 300; ++i) {
    sockets_.push_back(dial(listener_->address()));
    std::vector<std::byte> noise(static_cast<std::size_t>(test::pick(random, 0, 300)));
    for (std::byte& b : noise) b = static_cast<std::byte>(random());
    std::vector<std::byte> start = encode(hello(1));
    if (test::chance(random, 0.3)) {
      start.resize(static_cast<std::size_t>(test::pick(random, 1, static_cast<std::int64_t>(start.size()))));
      std::copy_n(start.begin(), std::min(start.size(), noise.size()), noise.begin());
    }
    put(sockets_.back(), noise);
    if (test::chance(random, 0.5)) sockets_.pop_back();
  }
  EXPECT_TRUE(accepted(hello(0), kSecret)) << "seed " << seed;
  EXPECT_TRUE(accepted(hello(1), kSecret)) << "seed " << seed;
  EXPECT_TRUE(missing().empty());
}

TEST_F(Greeting, WhenManyStrangersStaySilent_TheNewestPushOutTheOldest) {
  constexpr int kMore = 150;
  const auto begun = Clock::now();
  for (int i = 0; i < kMore; ++i) sockets_.push_back(dial(listener_->address()));
  std::byte byte{};
  EXPECT_EQ(recv(sockets_.front().get(), &byte, 1, 0), 0);
  EXPECT_LT(Clock::now() - begun, std::chrono::seconds(4)) << "before its time to greet is over";
  EXPECT_EQ(recv(sockets_.back().get(), &byte, 1, MSG_DONTWAIT), -1);
}

TEST_F(Greeting, WhenAStrangerStaysSilent_IsClosed) {
  sockets_.push_back(dial(listener_->address()));
  std::byte byte{};
  EXPECT_EQ(recv(sockets_.front().get(), &byte, 1, 0), 0);
}

/// The first attempt may have met a process that hangs, or a packet may have been lost.
TEST(Connect, WhenAPeerAcceptsButDoesNotAnswer_IsAskedAgain) {
  const Socket silent(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  Address address = parseAddress("127.0.0.1:1").value();
  reinterpret_cast<sockaddr_in*>(&address.storage)->sin_port = 0;
  ASSERT_EQ(bind(silent.get(), address.get(), address.size()), 0);
  ASSERT_EQ(listen(silent.get(), 8), 0);
  socklen_t size = sizeof address.storage;
  ASSERT_EQ(getsockname(silent.get(), address.get(), &size), 0);
  const timeval limit{9, 0};
  setsockopt(silent.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  auto listener = Listener::create({"", "127.0.0.1"}).value();
  const World world = test::makeWorld(test::oneHost(2), {listener->address(), toString(address)});
  std::thread connecting([&] {
    auto poller = Poller::create().value();
    GroupOptions options;
    options.deadline = Clock::now() + milliseconds(7'000);
    EXPECT_EQ(connect(world, listener, *poller, options).status().code(), Code::timeout);
  });
  const Socket first(accept(silent.get(), nullptr, nullptr));
  EXPECT_TRUE(first.valid());
  const Socket second(accept(silent.get(), nullptr, nullptr));
  EXPECT_TRUE(second.valid());
  connecting.join();
}

TEST(Connect, WhenAPeerIsNotThere_NamesItAndItsAddress) {
  test::GroupShape shape = test::oneHost(2);
  auto listener = Listener::create({"", "127.0.0.1"}).value();
  std::string dead;
  {
    dead = Listener::create({"", "127.0.0.1"}).value()->address();
  }
  const World world = test::makeWorld(shape, {listener->address(), dead});
  auto poller = Poller::create().value();
  GroupOptions options;
  options.name = "dp";
  options.deadline = Clock::now() + milliseconds(200);
  const auto group = connect(world, listener, *poller, options);
  ASSERT_FALSE(group.ok());
  EXPECT_EQ(group.status().code(), Code::timeout);
  EXPECT_EQ(group.status().culprit(), 1);
  EXPECT_NE(group.status().message().find("rank 1 (host h0, pid 101, cpu) at " + dead), std::string::npos)
      << group.status().message();
}

TEST(Connect, WhenNobodyConnects_NamesAllThatAreMissing) {
  test::GroupShape shape = test::oneHost(3);
  auto listener = Listener::create({"", "127.0.0.1"}).value();
  const World world = test::makeWorld(shape, {"127.0.0.1:1", "127.0.0.1:1", listener->address()});
  auto poller = Poller::create().value();
  GroupOptions options;
  options.rank = 2;
  options.deadline = Clock::now() + milliseconds(100);
  options.globalRanks = {4, 6, 8};
  const auto group = connect(world, listener, *poller, options);
  ASSERT_FALSE(group.ok());
  EXPECT_EQ(group.status().culprit(), 4);
  EXPECT_NE(group.status().message().find("rank 4 (host h0, pid 100, cpu), rank 6 (host h0, pid 101, cpu)"),
            std::string::npos)
      << group.status().message();
}

TEST(AddressChoice, WhenTowardsLoopback_IsLoopback) {
  EXPECT_EQ(Listener::create({"", "127.0.0.1"}).value()->address().rfind("127.0.0.1:", 0), 0U);
  EXPECT_EQ(Listener::create({"lo", ""}).value()->address().rfind("127.0.0.1:", 0), 0U);
}

TEST(AddressChoice, WhenTheInterfaceDoesNotExist_NamesThoseThatDo) {
  const auto listener = Listener::create({"nosuch", ""});
  ASSERT_FALSE(listener.ok());
  EXPECT_NE(listener.status().message().find("there are: lo"), std::string::npos)
      << listener.status().message();
}

TEST(AddressText, GivesBackWhatItParsed) {
  for (const char* text : {"10.1.2.3:4711", "[::1]:80"})
    EXPECT_EQ(toString(parseAddress(text).value()), text);
  for (const char* text :
       {"", ":1", "10.0.0.1", "10.0.0.1:", "10.0.0.1:0", "10.0.0.1:99999", "host:1", "1.2.3.4:5x"}) {
    EXPECT_EQ(parseAddress(text).status().code(), Code::invalidArgument) << text;
  }
}

}  // namespace
}  // namespace kaitian::host::net
