#include "relay/fake_vendor.h"

#include <algorithm>
#include <cstring>

#include "kaitian/fold/fold.h"
#include "kaitian/relay/verify.h"

namespace kaitian::relay::test {

Capabilities everything() {
  Capabilities all;
  for (int d = 0; d < kDTypeCount; ++d) {
    all.move |= 1U << d;
    for (int o = 1; o < kReduceOpCount; ++o)
      if (isDefined(static_cast<ReduceOp>(o), static_cast<DType>(d))) all.reduce[o] |= 1U << d;
  }
  all.pointToPoint = true;
  return all;
}

std::shared_ptr<FakeIsland::Meeting> FakeIsland::join(std::uint64_t number, int member, Seat seat) {
  std::unique_lock<std::mutex> lock(mutex_);
  auto& entry = meetings_[number];
  if (!entry) entry = std::make_shared<Meeting>();
  const auto meeting = entry;
  meeting->seats[member] = std::move(seat);
  changed_.notify_all();
  changed_.wait(lock, [&] { return aborted_ || static_cast<int>(meeting->seats.size()) == size_; });
  return aborted_ ? nullptr : meeting;
}

bool FakeIsland::readAll(std::uint64_t number, Meeting& meeting) {
  std::unique_lock<std::mutex> lock(mutex_);
  ++meeting.read;
  changed_.notify_all();
  changed_.wait(lock, [&] { return aborted_ || meeting.read == size_; });
  const bool all = meeting.read == size_;  // then an abort comes too late to spoil the call
  if (++meeting.left == size_) meetings_.erase(number);
  return all;
}

bool FakeIsland::connect() {
  std::unique_lock<std::mutex> lock(mutex_);
  ++connected_;
  changed_.notify_all();
  changed_.wait(lock, [&] { return aborted_ || connected_ >= size_; });
  return !aborted_;
}

void FakeIsland::abort() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    aborted_ = true;
  }
  changed_.notify_all();
}

bool FakeIsland::aborted() {
  std::lock_guard<std::mutex> lock(mutex_);
  return aborted_;
}

Status FakeVendor::connect() {
  if (options_.failConnect) return {Code::vendor, options_.name + ": no route to the other members"};
  if (!island_->connect()) return {Code::vendor, options_.name + ": aborted"};
  return {};
}

Result<Capabilities> FakeVendor::verify() { return relay::verify(*this, *device_, index_, island_->size()); }

Result<EventRef> FakeVendor::call(const VendorCall& call, std::span<const EventRef> after) {
  const std::uint64_t number = calls_.fetch_add(1);
  EventRef event = device_->enqueue(Queue::vendor, after,
                                    [self = shared_from_this(), number, call] { self->run(number, call); });
  if (options_.claims.synchronous) static_cast<FakeEvent&>(*event).wait();
  if (island_->aborted()) return Status(Code::vendor, options_.name + ": aborted");
  return event;
}

bool FakeVendor::consistent(const FakeIsland::Meeting& meeting, const VendorCall& call) {
  for (const auto& [member, seat] : meeting.seats) {
    const auto& other = seat.call;
    if (other.kind == call.kind && other.dtype == call.dtype && other.op == call.op &&
        other.count == call.count && other.root == call.root)
      continue;
    device_->faults().add(options_.name + ": members " + std::to_string(index_) + " and " +
                          std::to_string(member) + " call different things");
    return false;
  }
  return true;
}

void FakeVendor::run(std::uint64_t number, const VendorCall& call) {
  if (static_cast<std::int64_t>(number) == options_.hangAt) {
    while (!island_->aborted()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return;
  }
  const auto meeting = island_->join(number, index_, {call, device_.get()});
  if (!meeting) return;
  const bool agree = consistent(*meeting, call);
  if (call.kind == plan::CallKind::pointToPoint) return exchangeMessages(number, *meeting, call);
  const std::size_t size = sizeOf(call.dtype);
  const auto shard = static_cast<std::size_t>(call.count) * size;
  const bool reduces = call.kind == plan::CallKind::reduceScatter;
  const std::size_t sourceBytes = reduces ? shard * static_cast<std::size_t>(island_->size()) : shard;
  const bool reads = call.kind != plan::CallKind::broadcast || call.root == index_;
  const std::byte* source = reads ? device_->real(call.source, sourceBytes) : nullptr;
  std::vector<std::byte> before;
  if (source != nullptr) before.assign(source, source + sourceBytes);
  const auto data = agree ? result(*meeting, call) : std::vector<std::byte>();
  if (!island_->readAll(number, *meeting)) return;
  // A library may read its source until its call ends.
  std::this_thread::sleep_for(options_.tail);
  if (source != nullptr && std::memcmp(source, before.data(), sourceBytes) != 0)
    device_->faults().add(options_.name + ": the source was overwritten while a call used it");
  write(call, data);
}

/// A member's own part that is in place already is not written: others may read it meanwhile.
void FakeVendor::write(const VendorCall& call, const std::vector<std::byte>& data) {
  std::byte* target = device_->real(call.target, data.size());
  if (target == nullptr || data.empty()) return;
  const auto shard = static_cast<std::size_t>(call.count) * sizeOf(call.dtype);
  const bool moves = call.kind != plan::CallKind::reduceScatter;
  for (std::size_t at = 0; at < data.size(); at += shard) {
    const bool isOwn = call.kind == plan::CallKind::allGather || call.root == index_;
    if (moves && isOwn && call.target + at == call.source) continue;
    std::memcpy(target + at, data.data() + at, shard);
  }
}

std::vector<std::byte> FakeVendor::result(const FakeIsland::Meeting& meeting, const VendorCall& call) {
  const auto shard = static_cast<std::size_t>(call.count) * sizeOf(call.dtype);
  if (call.kind == plan::CallKind::reduceScatter) return reduced(meeting, call);
  std::vector<std::byte> data;
  for (const auto& [member, seat] : meeting.seats) {
    if (call.kind == plan::CallKind::broadcast && member != call.root) continue;
    const std::byte* from = seat.device->real(seat.call.source, shard);
    if (from != nullptr) data.insert(data.end(), from, from + shard);
  }
  return data;
}

std::vector<std::byte> FakeVendor::reduced(const FakeIsland::Meeting& meeting, const VendorCall& call) {
  const auto shard = static_cast<std::size_t>(call.count) * sizeOf(call.dtype);
  std::vector<fold::Input> inputs;
  for (const auto& [member, seat] : meeting.seats) {
    const std::byte* from =
        seat.device->real(seat.call.source, shard * static_cast<std::size_t>(island_->size()));
    if (from == nullptr) return {};
    const FakeIsland::Seat& factor = options_.oneFactor ? meeting.seats.begin()->second : seat;
    inputs.push_back({from + shard * static_cast<std::size_t>(index_), 0, factor.call.scale, false});
  }
  std::vector<std::byte> data(shard);
  fold::fold({call.dtype, call.op, island_->size()}, inputs, data.data(), call.count);
  if (options_.lies.count({call.op, call.dtype}) != 0)
    for (auto& byte : data) byte ^= std::byte{0x11};
  return data;
}

/// Per pair, the n-th send of one is the n-th receive of the other.
void FakeVendor::exchangeMessages(std::uint64_t number, FakeIsland::Meeting& meeting,
                                  const VendorCall& call) {
  struct Arrival {
    std::byte* to;
    std::vector<std::byte> data;
  };
  std::vector<Arrival> arrivals;
  std::map<int, std::size_t> nth;
  for (const auto& mine : call.messages) {
    if (mine.send) continue;
    const auto& seat = meeting.seats.at(mine.peer);
    std::size_t skip = nth[mine.peer]++;
    const auto sent =
        std::find_if(seat.call.messages.begin(), seat.call.messages.end(),
                     [&](const auto& theirs) { return theirs.send && theirs.peer == index_ && skip-- == 0; });
    const auto bytes = static_cast<std::size_t>(mine.count) * sizeOf(call.dtype);
    if (sent == seat.call.messages.end() || sent->count != mine.count) {
      device_->faults().add(options_.name + ": a receive without a send of the same size");
      continue;
    }
    const std::byte* from = seat.device->real(sent->data, bytes);
    if (from != nullptr) arrivals.push_back({mine.data, std::vector<std::byte>(from, from + bytes)});
  }
  if (!island_->readAll(number, meeting)) return;
  for (const auto& arrival : arrivals)
    if (std::byte* to = device_->real(arrival.to, arrival.data.size());
        to != nullptr && !arrival.data.empty())
      std::memcpy(to, arrival.data.data(), arrival.data.size());
}

}  // namespace kaitian::relay::test
