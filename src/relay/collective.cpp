#include "relay/collective.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "kaitian/core/hash.h"
#include "kaitian/core/log.h"
#include "kaitian/host/ranks.h"

namespace kaitian::relay {
namespace {

std::int64_t total(const std::vector<std::int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

/// The count as the caller would state it: of one block where all blocks are equal, else of all.
std::uint64_t statedCount(const plan::Collective& collective, int worldSize) {
  const auto& counts = collective.counts;
  const bool blocks = collective.kind != plan::Kind::allReduce && collective.kind != plan::Kind::reduce &&
                      collective.kind != plan::Kind::broadcast;
  const bool equal = std::equal(counts.begin() + (counts.empty() ? 0 : 1), counts.end(), counts.begin());
  auto count = total(counts);
  if (blocks && equal) count /= worldSize;
  if (collective.kind == plan::Kind::allToAll && equal) count /= worldSize;
  return static_cast<std::uint64_t>(count);
}

bool hasRows(const Request& request) {
  return request.collective.kind == plan::Kind::allToAll && !request.sends.empty();
}

}  // namespace

host::Signature signatureOf(const Request& request, std::uint64_t sequence, int worldSize) {
  const auto& collective = request.collective;
  host::Signature signature;
  signature.sequence = sequence;
  signature.kind = collective.kind;
  signature.dtype = collective.dtype;
  signature.op = collective.op;
  signature.onDevice = request.onDevice;
  signature.root = collective.root;
  signature.scale = request.scale;
  core::Hash64 hash;
  hash.add(static_cast<std::uint64_t>(collective.lists));
  if (hasRows(request)) {
    signature.sends = request.sends;
    signature.receives = request.receives;
    signature.count = static_cast<std::uint64_t>(total(request.sends));
  } else {
    signature.count = statedCount(collective, worldSize);
    for (const std::int64_t count : collective.counts) hash.add(static_cast<std::uint64_t>(count));
  }
  signature.countsHash = hash.value();
  return signature;
}

Collective::Collective(std::shared_ptr<Context> context, Request request,
                       std::shared_ptr<OperationState> state, Lane::TicketRef ticket,
                       std::chrono::milliseconds timeout)
    : context_(std::move(context)),
      buffers_(std::make_shared<Buffers>()),
      state_(std::move(state)),
      ticket_(std::move(ticket)),
      timeout_(timeout),
      submitted_(host::Clock::now()),
      lastProgress_(submitted_) {
  signature_ = signatureOf(request, state_->sequence(), context_->layout.worldSize());
  buffers_->sequence = state_->sequence();
  buffers_->elementBytes = sizeOf(request.collective.dtype);
  footprint_ = Footprint(request, buffers_->elementBytes);
  if (request.after) buffers_->caller.push_back(std::move(request.after));
  buffers_->request = std::move(request);
}

bool Collective::publish() {
  // Whoever passes a barrier may rely on what was enqueued before it, on every rank.
  const bool isBarrier = signature_.kind == plan::Kind::barrier;
  if (isBarrier && !buffers_->caller.empty() && !buffers_->caller.front()->query()) return false;
  context_->hosts.publish(signature_);
  return published_ = true;
}

Result<bool> Collective::compare() {
  if (permitted_) return false;
  const int worldSize = context_->layout.worldSize();
  while (seen_ < worldSize && context_->hosts.signature(signature_.sequence, seen_) != nullptr) ++seen_;
  if (seen_ < worldSize) return false;
  std::vector<host::Signature> all;
  all.reserve(static_cast<std::size_t>(worldSize));
  for (int rank = 0; rank < worldSize; ++rank)
    all.push_back(*context_->hosts.signature(signature_.sequence, rank));
  if (Status status = host::compare(all, context_->layout, context_->config.globalRanks); !status.ok())
    return status;
  for (const auto& signature : all) {
    if (signature_.op == ReduceOp::premulSum) buffers_->scales.push_back(signature.scale);
    if (hasRows(buffers_->request)) {
      auto& counts = buffers_->request.collective.counts;
      counts.insert(counts.end(), signature.sends.begin(), signature.sends.end());
    }
  }
  permitted_ = true;
  for (const auto& chunk : open_) chunk->permit();
  return true;
}

Work Collective::work() const {
  const auto& collective = buffers_->request.collective;
  return {collective.kind, collective.dtype, collective.op,
          total(collective.counts) * static_cast<std::int64_t>(buffers_->elementBytes)};
}

/// False until one member of each island has told where its tensors are.
bool Collective::islandsOnDevice(std::vector<bool>& onDevice) const {
  const plan::Layout& layout = context_->layout;
  onDevice.assign(static_cast<std::size_t>(layout.islands()), false);
  for (int island = 0; island < layout.islands(); ++island) {
    const auto& members = layout.islandMembers(island);
    if (members.size() < 2) continue;
    bool bit = signature_.onDevice;
    if (island != context_->island()) {
      const auto* theirs = context_->hosts.signature(signature_.sequence, members.front());
      if (theirs == nullptr) return false;
      bit = theirs->onDevice;
    }
    onDevice[static_cast<std::size_t>(island)] = bit;
  }
  return true;
}

Result<bool> Collective::plan(Activation& activation, const std::vector<EventRef>& earlier) {
  // Factors and split sizes are known when all signatures are.
  if ((hasRows(buffers_->request) || signature_.op == ReduceOp::premulSum) && !permitted_) return false;
  auto chosen = choosePath(activation);
  if (!chosen.ok() || !chosen.value()) return chosen;
  cut_ = context_->plans.get(buffers_->request.collective, path_.strategy);
  if (!cut_->status().ok()) return cut_->status();
  const bool usesVendor =
      path_.strategy[static_cast<std::size_t>(context_->island())] == plan::Strategy::vendor;
  if (!usesVendor) closeTicket();
  if (usesVendor)
    buffers_->capabilities = activation.capabilities()[static_cast<std::size_t>(context_->island())];
  buffers_->caller.insert(buffers_->caller.end(), earlier.begin(), earlier.end());
  core::log(
      core::LogLevel::trace, host::globalRank(context_->config.globalRanks, context_->rank()),
      [this] { return host::describe(signature_, context_->config.globalRanks); }, " in group ",
      context_->config.name, ": ", chunkCount(), " chunks; ", path_.reason);
  planned_ = true;
  if (chunkCount() == 0) closeTicket();
  return true;
}

Result<bool> Collective::choosePath(Activation& activation) {
  const plan::Layout& layout = context_->layout;
  path_.strategy.assign(static_cast<std::size_t>(layout.islands()), plan::Strategy::relay);
  path_.reason = relayReason(work(), layout, context_->config);
  if (!path_.reason.empty()) return true;
  std::vector<bool> onDevice;
  if (!islandsOnDevice(onDevice)) return false;
  if (std::find(onDevice.begin(), onDevice.end(), true) == onDevice.end()) {
    path_.reason = "host tensors";
    return true;
  }
  activation.start(ticket_);
  if (!activation.active()) return false;
  path_ = choose(work(), layout, onDevice, activation.capabilities(), context_->config);
  return true;
}

void Collective::closeTicket() {
  if (ticket_) context_->lane->close(ticket_);
  ticket_.reset();
}

Result<bool> Collective::advance(bool oldest) {
  auto opened = openChunks(oldest);
  if (!opened.ok()) return opened;
  bool moved = issueSteps() || opened.value();
  bool progress = false;
  for (const auto& chunk : open_) {
    if (chunk->closed()) continue;
    auto result = chunk->advance(progress);
    if (!result.ok()) return result;
    moved = moved || result.value();
  }
  moved = issueSteps() || moved;  // post steps of what was staged in just now
  if (progress) lastProgress_ = host::Clock::now();
  return dropClosed() || moved;
}

Result<bool> Collective::openChunks(bool oldest) {
  constexpr std::size_t kStagedBytes = std::size_t{64}
                                       << 20;  // of a group; the oldest operation may exceed it
  bool moved = false;
  while (next_ < chunkCount() && next_ - firstOpen_ <= lag()) {
    auto chunk =
        std::make_shared<ChunkRun>(context_, buffers_, cut_->plan(next_), static_cast<std::uint32_t>(next_));
    if (!oldest && context_->stagedBytes + chunk->stagingBytes() > kStagedBytes) break;
    open_.push_back(chunk);
    if (Status status = chunk->open(); !status.ok()) return status;
    if (permitted_) chunk->permit();
    ++next_;
    moved = true;
  }
  return moved;
}

/// Issues steps in the static order: the front of chunk k + lag, then the back of chunk k. All members of an
/// island use one communicator, so the order must not depend on what happens to be ready.
bool Collective::issueSteps() {
  bool moved = false;
  while (nextBack_ < chunkCount()) {
    const bool front = nextFront_ < chunkCount() && nextFront_ - nextBack_ <= lag();
    if (front) {
      if (nextFront_ >= next_) break;
      chunk(nextFront_++).runFront(ticket_);
    } else {
      if (!chunk(nextBack_).backReady()) break;
      chunk(nextBack_++).runBack(ticket_);
    }
    moved = true;
  }
  if (planned_ && nextBack_ == chunkCount()) closeTicket();
  return moved;
}

bool Collective::dropClosed() {
  bool moved = false;
  while (!open_.empty() && open_.front()->closed()) {
    for (auto& event : open_.front()->lastEvents()) events_.push_back(std::move(event));
    open_.front()->release();
    open_.pop_front();
    ++firstOpen_;
    moved = true;
  }
  return moved;
}

void Collective::finish(const Status& status) {
  closeTicket();
  for (const auto& chunk : open_)
    for (auto& event : chunk->lastEvents()) events_.push_back(std::move(event));
  allPast(events_);
  context_->finish(*state_, status, status.ok() ? events_ : std::vector<EventRef>{});
}

bool Collective::copyingOut() const {
  return std::any_of(open_.begin(), open_.end(), [](const auto& chunk) { return chunk->copyingOut(); });
}

bool Collective::idle() const {
  return std::all_of(open_.begin(), open_.end(), [](const auto& chunk) { return chunk->idle(); });
}

void Collective::release() {
  auto events = events_;
  for (const auto& chunk : open_) {
    for (auto& event : chunk->allEvents()) events.push_back(std::move(event));
    chunk->release();
  }
  open_.clear();
  auto keepAlive = std::move(buffers_->request.keepAlive);
  if (!keepAlive) return;
  // Tensors may need the GIL to go, which the progress thread never takes.
  if (allPast(events)) {
    context_->complete(*state_, [keepAlive = std::move(keepAlive)]() mutable { keepAlive.reset(); });
    return;
  }
  context_->cooling.add(
      std::move(events), [&process = context_->process, keepAlive = std::move(keepAlive)]() mutable {
        process.complete([keepAlive = std::move(keepAlive)]() mutable { keepAlive.reset(); });
      });
}

host::Clock::time_point Collective::deadline() const { return lastProgress_ + timeout_; }

std::vector<int> Collective::notCalled() const {
  std::vector<int> missing;
  for (int rank = 0; rank < context_->layout.worldSize(); ++rank)
    if (context_->hosts.signature(signature_.sequence, rank) == nullptr) missing.push_back(rank);
  return missing;
}

std::vector<int> Collective::waitingFor() const {
  std::vector<int> ranks;
  for (const auto& chunk : open_)
    for (const int rank : chunk->waitingFor())
      if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) ranks.push_back(rank);
  return ranks;
}

bool Collective::inVendorCall() const {
  return std::any_of(open_.begin(), open_.end(), [](const auto& chunk) { return chunk->inVendorCall(); });
}

}  // namespace kaitian::relay
