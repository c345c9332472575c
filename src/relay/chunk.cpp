#include "relay/chunk.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace kaitian::relay {
namespace {

std::size_t aligned(std::size_t bytes) {
  constexpr std::size_t kLine = 64;  // no two gives or takes share a cache line
  return (bytes + kLine - 1) / kLine * kLine;
}

template <typename Ranges>
std::size_t stagingOf(const Ranges& ranges, std::size_t elementBytes) {
  std::size_t bytes = 0;
  for (const auto& range : ranges)
    bytes += aligned(static_cast<std::size_t>(range.hi - range.lo) * elementBytes);
  return bytes;
}

/// Addresses of ranges laid out one behind the other from `base`.
template <typename Ranges>
std::vector<std::byte*> layOut(const Ranges& ranges, std::byte* base, std::size_t elementBytes) {
  std::vector<std::byte*> addresses;
  for (const auto& range : ranges) {
    addresses.push_back(base);
    base += aligned(static_cast<std::size_t>(range.hi - range.lo) * elementBytes);
  }
  return addresses;
}

}  // namespace

std::byte* Buffers::address(const plan::Ref& ref, const BlockRef& scratch) const {
  const auto offset = static_cast<std::size_t>(ref.offset) * elementBytes;
  const auto tensor = static_cast<std::size_t>(ref.tensor);
  switch (ref.space) {
    case plan::Space::input:
      return request.inputs[tensor].address + offset;
    case plan::Space::output:
      return request.outputs[tensor].address + offset;
    case plan::Space::scratch:
      break;
  }
  return scratch->data() + offset;
}

ChunkRun::ChunkRun(std::shared_ptr<Context> context, std::shared_ptr<Buffers> buffers,
                   std::shared_ptr<const plan::Plan> plan, std::uint32_t index)
    : context_(std::move(context)),
      buffers_(std::move(buffers)),
      plan_(std::move(plan)),
      index_(index),
      onDevice_(buffers_->request.onDevice) {
  if (!onDevice_) return;
  stagingBytes_ = stagingOf(gives(), buffers_->elementBytes) + stagingOf(takes(), buffers_->elementBytes);
  front_.first = ownSteps(plan_->pre);
  front_.second = ownSteps(plan_->local);
  back_.first = ownSteps(plan_->post);
}

const std::vector<plan::Give>& ChunkRun::gives() const {
  return plan_->gives[static_cast<std::size_t>(context_->rank())];
}

const std::vector<plan::Take>& ChunkRun::takes() const {
  return plan_->takes[static_cast<std::size_t>(context_->rank())];
}

std::vector<const plan::Step*> ChunkRun::ownSteps(const std::vector<plan::Step>& steps) const {
  std::vector<const plan::Step*> own;
  for (const auto& step : steps) {
    const bool isOwn = step.what == plan::Step::What::call ? step.call.island == context_->island()
                                                           : step.copy.rank == context_->rank();
    if (isOwn) own.push_back(&step);
  }
  return own;
}

Status ChunkRun::open() {
  if (Status status = allocate(); !status.ok()) return status;
  context_->stagedBytes += stagingBytes_;
  opened_ = true;
  if (!onDevice_) {
    if (Status status = copyOnHost(plan_->pre); !status.ok()) return status;
    if (Status status = copyOnHost(plan_->local); !status.ok()) return status;
  }
  startExchange();
  if (!onDevice_) giveAll();
  return {};
}

Status ChunkRun::allocate() {
  const std::size_t size = buffers_->elementBytes;
  if (!onDevice_) {
    for (const auto& give : gives()) giveAt_.push_back(addressOf(give.ref));
    for (const auto& take : takes()) takeAt_.push_back(addressOf(take.ref));
    return {};
  }
  const auto scratchBytes = bytesOf(plan_->scratch[static_cast<std::size_t>(context_->rank())]);
  const std::pair<BlockRef*, std::size_t> wanted[] = {{&giveBlock_, stagingOf(gives(), size)},
                                                      {&takeBlock_, stagingOf(takes(), size)},
                                                      {&scratch_, scratchBytes}};
  for (const auto& [block, bytes] : wanted) {
    if (bytes == 0) continue;
    auto made = block == &scratch_ ? context_->pool->scratch(bytes) : context_->pool->host(bytes);
    if (!made.ok()) return made.status();
    *block = std::move(made).value();
  }
  if (giveBlock_) giveAt_ = layOut(gives(), giveBlock_->data(), size);
  if (takeBlock_) takeAt_ = layOut(takes(), takeBlock_->data(), size);
  return {};
}

void ChunkRun::startExchange() {
  host::ExchangeRequest request;
  request.sequence = buffers_->sequence;
  request.chunk = index_;
  request.plan = plan_;
  request.dtype = buffers_->request.collective.dtype;
  request.scales = buffers_->scales;
  request.gives.assign(giveAt_.begin(), giveAt_.end());
  request.takes = takeAt_;
  exchange_ = context_->hosts.exchange(std::move(request));
}

void ChunkRun::permit() {
  if (exchange_) exchange_->permit();
}

void ChunkRun::giveAll() {
  for (std::size_t i = 0; i < giveAt_.size(); ++i) exchange_->giveReady(i);
  given_ = true;
}

Status ChunkRun::copyOnHost(const std::vector<plan::Step>& steps) {
  for (const auto* step : ownSteps(steps)) {
    if (step->what == plan::Step::What::call)
      return {Code::internal, "the plan has a vendor call for an island that passes host tensors"};
    std::byte* to = addressOf(step->copy.to);
    const std::byte* from = addressOf(step->copy.from);
    if (to != from) std::memmove(to, from, bytesOf(step->copy.count));
  }
  return {};
}

void ChunkRun::runFront(const Lane::TicketRef& ticket) { issue(front_, ticket); }

void ChunkRun::runBack(const Lane::TicketRef& ticket) { issue(back_, ticket); }

void ChunkRun::issue(Steps& steps, const Lane::TicketRef& ticket) {
  steps.issued = true;
  if (steps.empty()) {
    steps.ran.store(true, std::memory_order_release);
    return;
  }
  auto task = [self = shared_from_this(), &steps] {
    self->execute(steps);
    steps.ran.store(true, std::memory_order_release);
    self->context_->wake();
  };
  if (ticket)
    context_->lane->add(ticket, std::move(task));
  else
    context_->lane->post(std::move(task));
}

Result<bool> ChunkRun::advance(bool& progress) {
  bool moved = false;
  for (const Steps* steps : {&front_, &back_})
    if (steps->issued && steps->idle() && !steps->status.ok()) return steps->status;
  auto out = stageOut();
  if (!out.ok()) return out;
  auto in = stageIn();
  if (!in.ok()) return in;
  moved = out.value() || in.value();
  progress = progress || in.value();
  const bool ranAll = front_.issued && back_.issued && front_.idle() && back_.idle();
  if (given_ && stagedIn_ && ranAll && exchange_->done()) {
    closed_ = moved = progress = true;
    exchange_.reset();
  }
  return moved;
}

Result<bool> ChunkRun::stageOut() {
  if (given_ || !front_.issued || !front_.idle()) return false;
  if (gives().empty()) return given_ = true;
  if (!stagedOut_) {
    std::vector<EventRef> after;
    if (front_.firstEvent)
      after.push_back(front_.firstEvent);  // pre -> out
    else if (!buffers_->outSeesCaller)
      after = buffers_->caller;  // caller -> out
    buffers_->outSeesCaller = true;
    std::vector<MemoryCopy> copies;
    for (std::size_t i = 0; i < gives().size(); ++i)
      copies.push_back({giveAt_[i], addressOf(gives()[i].ref), bytesOf(gives()[i].hi - gives()[i].lo)});
    auto event = context_->device->copyOut(copies, after);
    if (!event.ok()) return event.status();
    outEvent_ = std::move(event).value();
    stagedOut_ = true;
  }
  if (!outEvent_->query()) return false;
  outEvent_.reset();
  giveAll();
  return true;
}

Result<bool> ChunkRun::stageIn() {
  // The front comes first also for the device: its event orders takes behind vendor calls that still read the
  // buffer.
  if (stagedIn_ || !front_.issued || !front_.idle()) return false;
  for (std::size_t i = 0; i < takes().size(); ++i)
    if (!exchange_->takeReady(i)) return false;
  stagedIn_ = true;
  if (!onDevice_) {
    if (Status status = copyOnHost(plan_->post); !status.ok()) return status;
    return true;
  }
  if (takes().empty()) return true;
  std::vector<EventRef> after;
  if (front_.firstEvent)
    after.push_back(front_.firstEvent);  // pre -> in
  else if (!buffers_->inSeesCaller)
    after = buffers_->caller;  // caller -> in
  buffers_->inSeesCaller = true;
  std::vector<MemoryCopy> copies;
  for (std::size_t i = 0; i < takes().size(); ++i)
    copies.push_back({addressOf(takes()[i].ref), takeAt_[i], bytesOf(takes()[i].hi - takes()[i].lo)});
  auto event = context_->device->copyIn(copies, after);
  if (!event.ok()) return event.status();
  inEvent_ = std::move(event).value();
  return true;
}

std::vector<EventRef> ChunkRun::lastEvents() const {
  std::vector<EventRef> events;
  if (inEvent_) events.push_back(inEvent_);
  // The last in queue `vendor`; what a task still writes is not looked at.
  if (back_.idle() && back_.lastEvent)
    events.push_back(back_.lastEvent);
  else if (front_.idle() && front_.lastEvent)
    events.push_back(front_.lastEvent);
  return events;
}

std::vector<EventRef> ChunkRun::allEvents() const {
  auto events = lastEvents();
  if (outEvent_) events.push_back(outEvent_);
  return events;
}

void ChunkRun::release() {
  auto events = allEvents();
  exchange_.reset();
  if (std::exchange(opened_, false)) context_->stagedBytes -= stagingBytes_;
  if (!giveBlock_ && !takeBlock_ && !scratch_) return;
  context_->cooling.add(std::move(events), [pool = context_->pool, give = std::move(giveBlock_),
                                            take = std::move(takeBlock_), scratch = std::move(scratch_)] {
    pool->giveHost(give);
    pool->giveHost(take);
    pool->giveScratch(scratch);
  });
}

std::vector<int> ChunkRun::waitingFor() const {
  return exchange_ ? exchange_->waitingFor() : std::vector<int>{};
}

}  // namespace kaitian::relay
