#include "relay/message.h"

#include <utility>

#include "kaitian/host/ranks.h"

namespace kaitian::relay {

MessageRun::MessageRun(std::shared_ptr<Context> context, MessageRequest request,
                       std::shared_ptr<OperationState> state, std::chrono::milliseconds timeout)
    : context_(std::move(context)),
      request_(std::move(request)),
      state_(std::move(state)),
      timeout_(timeout),
      submitted_(host::Clock::now()) {}

Status MessageRun::start() {
  std::byte* data = request_.buffer.address;
  if (request_.onDevice && bytes() > 0) {
    auto block = context_->pool->host(bytes());
    if (!block.ok()) return block.status();
    staging_ = std::move(block).value();
    data = staging_->data();
  }
  if (!request_.send) {
    transfer_ = context_->hosts.receive(request_.peer, request_.tag, data, bytes());
    return {};
  }
  transfer_ = context_->hosts.send(request_.peer, request_.tag, data, bytes());
  if (!staging_) {
    transfer_->ready();
    return {};
  }
  const MemoryCopy copy{data, request_.buffer.address, bytes()};
  auto event =
      context_->device->copyOut({&copy, 1}, {&request_.after, request_.after ? 1U : 0U});  // caller -> out
  if (!event.ok()) return event.status();
  outEvent_ = std::move(event).value();
  return {};
}

Result<bool> MessageRun::advance() {
  bool moved = false;
  if (outEvent_ && outEvent_->query()) {
    outEvent_.reset();
    transfer_->ready();
    moved = true;
  }
  if (over_ || !transfer_->done()) return moved;
  if (!request_.send && staging_) {
    const MemoryCopy copy{request_.buffer.address, staging_->data(), bytes()};
    auto event =
        context_->device->copyIn({&copy, 1}, {&request_.after, request_.after ? 1U : 0U});  // caller -> in
    if (!event.ok()) return event.status();
    inEvent_ = std::move(event).value();
  }
  over_ = true;
  return true;
}

void MessageRun::finish(const Status& status) {
  std::vector<EventRef> events;
  if (status.ok() && inEvent_) events.push_back(inEvent_);
  const int source = status.ok() && transfer_ ? transfer_->peer() : request_.peer;
  context_->finish(*state_, status, std::move(events), source);
}

void MessageRun::release() {
  transfer_.reset();
  context_->cooling.add({outEvent_, inEvent_}, [&process = context_->process, pool = context_->pool,
                                                block = std::move(staging_),
                                                keepAlive = std::move(request_.keepAlive)]() mutable {
    if (block) pool->giveHost(std::move(block));
    // Tensors may need the GIL to go, which the progress thread never takes.
    if (keepAlive) process.complete([keepAlive = std::move(keepAlive)]() mutable { keepAlive.reset(); });
  });
}

std::string MessageRun::describe() const {
  const std::string peer = request_.peer == host::HostGroup::kAnySource
                               ? "any rank"
                               : host::rankName(context_->config.globalRanks, request_.peer);
  return (request_.send ? "send of " : "receive of ") + std::to_string(bytes()) + " bytes " +
         (request_.send ? "to " : "from ") + peer + ", tag " + std::to_string(request_.tag);
}

}  // namespace kaitian::relay
