// The part of a chunk that runs on the launch thread: vendor calls and device-local copies.
#include "relay/chunk.h"
#include "relay/strategy.h"

namespace kaitian::relay {

void ChunkRun::execute(Steps& steps) {
  // Relaxed: see Context::failed.
  if (context_->failed.load(std::memory_order_relaxed)) return;
  std::vector<EventRef> after;
  if (&steps == &back_ && inEvent_) after.push_back(inEvent_);  // in -> vendor
  auto first = executeList(steps.first, after);
  if (!first.ok()) {
    steps.status = first.status();
    return;
  }
  steps.firstEvent = first.value();
  auto second = executeList(steps.second, after);
  if (!second.ok()) {
    steps.status = second.status();
    return;
  }
  steps.lastEvent = second.value() ? second.value() : steps.firstEvent;
}

/// The event behind the last step that did anything; null if none did. The first one takes what stands in
/// `after`.
Result<EventRef> ChunkRun::executeList(const std::vector<const plan::Step*>& steps,
                                       std::vector<EventRef>& after) {
  EventRef last;
  for (const auto* step : steps) {
    const bool isCopy = step->what == plan::Step::What::copy;
    if (isCopy && addressOf(step->copy.from) == addressOf(step->copy.to)) continue;  // in place
    // What was staged in has waited for the caller itself.
    if (after.empty() && !buffers_->vendorSeesCaller) after = buffers_->caller;  // caller -> vendor
    buffers_->vendorSeesCaller = true;
    auto event = executeStep(*step, after);
    if (!event.ok()) return event;
    last = std::move(event).value();
    after.clear();
  }
  return last;
}

Result<EventRef> ChunkRun::executeStep(const plan::Step& step, std::span<const EventRef> after) {
  if (step.what == plan::Step::What::call) return executeCall(step.call, after);
  const MemoryCopy copy{addressOf(step.copy.to), addressOf(step.copy.from), bytesOf(step.copy.count)};
  return context_->device->copyLocal({&copy, 1}, after);
}

Result<EventRef> ChunkRun::executeCall(const plan::Call& call, std::span<const EventRef> after) {
  const auto index = static_cast<std::size_t>(context_->layout.indexInIsland(context_->rank()));
  const auto& collective = buffers_->request.collective;
  VendorCall made;
  made.kind = call.kind;
  made.dtype = collective.dtype;
  made.count = call.count;
  made.root = call.root;
  std::int64_t factor = 1;
  if (call.kind == plan::CallKind::reduceScatter) {
    made.op = vendorOp(collective.op);
    made.scale = buffers_->request.scale;
  } else if (!movable(buffers_->capabilities, collective.dtype, made.dtype) ||
             made.dtype != collective.dtype) {
    // A type that the library does not know moves as bytes.
    factor = static_cast<std::int64_t>(buffers_->elementBytes);
    made.count *= factor;
  }
  if (call.kind != plan::CallKind::pointToPoint) {
    made.source = addressOf(call.source[index]);
    made.target = addressOf(call.target[index]);
  }
  for (const auto& message : call.messages) {
    const bool sends = message.from == context_->rank();
    if (!sends && message.to != context_->rank()) continue;
    made.messages.push_back({context_->layout.indexInIsland(sends ? message.to : message.from), sends,
                             addressOf(sends ? message.source : message.target), message.count * factor});
  }
  return context_->vendor->call(made, after);
}

}  // namespace kaitian::relay
