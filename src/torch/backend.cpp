#include "torch/backend.h"

#include <c10/core/StreamGuard.h>

#include <algorithm>

#include "kaitian/core/environment.h"
#include "kaitian/core/log.h"
#include "kaitian/host/ranks.h"
#include "torch/process_id.h"
#include "torch/vendor_store.h"

namespace kaitian::shim {
namespace {

/// torch's store with deadlines. Only used during the rendezvous, by one thread.
class TorchStore final : public host::Store {
 public:
  explicit TorchStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  Status set(const std::string& key, const std::string& value) override {
    return guarded([&] { store_->set(key, value); });
  }

  Result<std::string> get(const std::string& key, host::Clock::time_point deadline) override {
    std::string value;
    try {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - host::Clock::now());
      store_->wait({key}, std::max(left, std::chrono::milliseconds(1)));
      value = store_->get_to_str(key);
    } catch (const std::exception& error) {
      const bool late = host::Clock::now() + std::chrono::milliseconds(5) >= deadline;
      return Status(late ? Code::timeout : Code::resource, "store: " + textOf(error));
    }
    return value;
  }

  bool check(const std::string& key) override {
    bool there = false;
    (void)guarded([&] { there = store_->check({key}); });
    return there;
  }

  void remove(const std::string& key) override {
    (void)guarded([&] { store_->deleteKey(key); });
  }

 private:
  template <typename Action>
  Status guarded(Action action) {
    try {
      action();
      return {};
    } catch (const std::exception& error) {
      return {Code::resource, "store: " + textOf(error)};
    }
  }

  c10::intrusive_ptr<c10d::Store> store_;
};

/// Worlds that no protocol check can refuse, because only torch's side of them is impossible.
Status refuseImpossible(const std::vector<host::Identity>& ranks, bool detail) {
  if (!detail || host::layoutOf(ranks).islands() == 1) return {};
  const bool cpuOnly =
      std::all_of(ranks.begin(), ranks.end(), [](const auto& r) { return r.deviceType == "cpu"; });
  if (cpuOnly) return {};
  return {
      Code::unsupported,
      "TORCH_DISTRIBUTED_DEBUG=DETAIL does not work in a group of unlike devices: PyTorch's wrapper compares "
      "the "
      "device types of all ranks and would report a mismatch at the first collective. kaitian compares every "
      "call itself, always. hint: unset TORCH_DISTRIBUTED_DEBUG or set it to INFO"};
}

/// "host a, pid 17, alpha:0", for messages.
std::string describe(const host::Identity& rank) {
  const std::string device =
      rank.deviceType == "cpu" ? "cpu" : rank.deviceType + ":" + std::to_string(rank.deviceIndex);
  return "host " + rank.hostname + ", pid " + std::to_string(rank.pid) + ", " + device;
}

host::RendezvousOptions rendezvousOptions(const Backend::Config& config, host::Clock::time_point deadline) {
  host::RendezvousOptions options;
  options.rank = config.rank;
  options.worldSize = config.size;
  options.globalRanks = config.globalRanks;
  options.group = config.name;
  options.deadline = deadline;
  return options;
}

}  // namespace

ReleaseGil::ReleaseGil() {
  if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) released.emplace();
}

namespace {

/// The threads of this process, with its id: those of a parent do not run in a forked child.
struct HeldProcess {
  std::mutex mutex;
  pid_t owner = 0;
  std::shared_ptr<relay::Process> process;

  static HeldProcess& instance() {
    // Never destroyed by static destruction: other threads may still use it while the interpreter ends.
    static auto* held = new HeldProcess;
    return *held;
  }
};

}  // namespace

bool drain(std::chrono::milliseconds timeout) {
  HeldProcess& held = HeldProcess::instance();
  std::unique_lock<std::mutex> lock(held.mutex);
  const auto process = held.owner == processId() ? held.process : nullptr;
  lock.unlock();
  return !process || process->drain(timeout);
}

std::shared_ptr<relay::Process> process(const std::string& towards) {
  HeldProcess& held = HeldProcess::instance();
  std::lock_guard<std::mutex> lock(held.mutex);
  if (held.owner != processId()) {
    if (held.process)
      new std::shared_ptr<relay::Process>(std::move(held.process));  // of the parent: leave it alone
    relay::Process::Options options;
    options.listen.towards = towards;
    options.listen.interface = core::Environment::read().socketInterface;
    auto made = relay::Process::create(options);
    throwIfBad(made.status());
    held.owner = processId();
    held.process = std::move(made).value();
  }
  return held.process;
}

namespace {

/// Python's objects do not tell: torch keeps only the C++ ones.
struct Registry {
  std::mutex mutex;
  std::vector<c10::weak_intrusive_ptr<Backend>> backends;

  static Registry& instance() {
    static auto* registry = new Registry;  // used while the interpreter ends
    return *registry;
  }
  void add(const c10::intrusive_ptr<Backend>& backend) {
    std::lock_guard<std::mutex> lock(mutex);
    std::erase_if(backends, [](const auto& known) { return known.expired(); });
    backends.emplace_back(backend);
  }
};

}  // namespace

std::vector<c10::intrusive_ptr<Backend>> Backend::live() {
  Registry& registry = Registry::instance();
  std::lock_guard<std::mutex> lock(registry.mutex);
  std::vector<c10::intrusive_ptr<Backend>> found;
  for (const auto& known : registry.backends) {
    auto backend = known.lock();
    if (backend && backend->creator_ == processId()) found.push_back(std::move(backend));
  }
  return found;
}

c10::intrusive_ptr<Backend> Backend::create(Config config) {
  ReleaseGil gil;
  config.timeout = std::min(config.timeout, kLongest);
  const auto deadline = host::Clock::now() + config.timeout;
  core::Log::process().setRank(host::globalRank(config.globalRanks, config.rank));
  auto shared = process(config.towards);
  host::Identity identity = config.identity;
  identity.address = shared->listener()->address();
  identity.local = shared->listener()->localName();

  const host::RendezvousOptions options = rendezvousOptions(config, deadline);
  TorchStore store(config.store);
  const bool detail = config.detail;
  auto world = host::rendezvous(store, identity, options,
                                [detail](const auto& ranks) { return refuseImpossible(ranks, detail); });
  throwIfBad(world.status());
  auto backend = c10::intrusive_ptr<Backend>::unsafe_steal_from_new(new Backend(config, world.value()));

  host::GroupOptions groupOptions;
  groupOptions.rank = config.rank;
  groupOptions.name = config.name;
  groupOptions.globalRanks = config.globalRanks;
  groupOptions.deadline = deadline;
  const auto quarter = std::max<std::chrono::milliseconds>(config.timeout / 4, std::chrono::milliseconds(50));
  groupOptions.heartbeat = std::min<std::chrono::milliseconds>(groupOptions.heartbeat, quarter);
  auto hosts = host::connect(world.value(), shared->listener(), shared->poller(), groupOptions);
  // Ranks that could not attach to a dead one say so at the deadline: rank 0 still hears them, and names that
  // one alone.
  host::RendezvousOptions hearing = options;
  hearing.deadline += std::chrono::seconds(2);
  throwIfBad(host::confirm(store, hearing, hosts.status()));
  throwIfBad(hosts.status());

  relay::GroupConfig group;
  group.name = config.name;
  group.timeout = config.timeout;
  group.globalRanks = config.globalRanks;
  for (const auto& rank : world.value().ranks) group.who.push_back(describe(rank));
  group.directBytes = config.options->directBytes;
  group.chunkBytes = config.options->chunkBytes;
  group.deterministic = config.options->deterministic;
  group.verify = world.value().verify;
  group.capabilities = identity.capabilities;
  backend->group_ =
      relay::Group::create(shared, std::move(hosts).value(), backend->device_, backend->vendor_, group);
  Registry::instance().add(backend);
  return backend;
}

Backend::Backend(const Config& config, host::World world)
    : c10d::Backend(config.rank, config.size),
      creator_(processId()),
      config_(config),
      world_(std::move(world)),
      options_(config.options),
      process_(process(config.towards)),
      timeout_(config.timeout) {
  init();
  options_->timeout = config.timeout;
  if (config.device) device_ = TorchDevice::of(*config.device);
  const int island = world_.layout.islandOf(config.rank);
  const auto& members = world_.layout.islandMembers(island);
  if (!device_ || !config_.vendor || members.size() == 1) return;
  VendorChild::Config child;
  child.name = config.identity.library;
  const auto& self = world_.ranks[static_cast<std::size_t>(config.rank)];
  child.where = child.name + " on rank " + std::to_string(globalRank()) + " (" + describe(self) + ")";
  child.claimed = config_.vendor->claimed;
  child.device = device_;
  child.index = world_.layout.indexInIsland(config.rank);
  child.size = static_cast<int>(members.size());
  std::vector<int> ranks;
  for (const int member : members) ranks.push_back(host::globalRank(config.globalRanks, member));
  auto store = c10::make_intrusive<VendorStore>(config.store);
  child.interrupt = [store] { store->abort(); };
  child.create = [create = config_.vendor->create, island, index = child.index, ranks = std::move(ranks),
                  store] { return create(island, index, ranks, store); };
  vendor_ = std::make_shared<VendorChild>(std::move(child));
}

Backend::~Backend() { drop(); }

void Backend::release_resources() { drop(); }

void Backend::drop() {
  if (!process_) return;          // by the other of the two
  if (creator_ != processId()) {  // forked: the threads behind these objects are not in this process
    new std::shared_ptr<relay::Group>(std::move(group_));
    new std::shared_ptr<VendorChild>(std::move(vendor_));
    new std::shared_ptr<relay::Process>(std::move(process_));
    return;
  }
  ReleaseGil gil;
  shutdown();
  group_.reset();
  vendor_.reset();
  process_.reset();
}

void Backend::checkOwner() const {
  if (creator_ == processId()) return;
  throwIfBad({Code::aborted, "kaitian: this process was forked from pid " + std::to_string(creator_) +
                                 ", which owns the group \"" + config_.name + "\"; make a new group here"});
}

void Backend::setTimeout(std::chrono::milliseconds timeout) {
  checkOwner();
  if (timeout.count() <= 0)
    throwIfBad({Code::invalidArgument, "argument timeout: expected a positive time, found " +
                                           std::to_string(timeout.count()) + " ms"});
  timeout = std::min(timeout, kLongest);
  std::lock_guard<std::mutex> lock(mutex_);
  timeout_ = timeout;
  options_->timeout = timeout;
  group_->setTimeout(timeout);
}

void Backend::setGroupUid(const std::string& uid) {
  c10d::Backend::setGroupUid(uid);
  if (!getBoundDeviceId() || !mixed()) return;
  const std::string reason =
      "device_id=" + getBoundDeviceId()->str() + " was given to init_process_group by rank " +
      std::to_string(globalRank()) +
      ": a group of unlike devices cannot be bound to one device, since PyTorch would then split "
      "communicators that other ranks do not have. hint: call torch.<device>.set_device instead";
  group_->abort(reason);
  throwIfBad({Code::invalidArgument, reason});
}

c10d::ErrorType Backend::getError() {
  switch (group_->status().code()) {
    case Code::ok:
      return c10d::ErrorType::SUCCESS;
    case Code::timeout:
      return c10d::ErrorType::TIMEOUT;
    case Code::peerLost:
    case Code::aborted:
    case Code::mismatch:
      return c10d::ErrorType::REMOTE_ERROR;
    default:
      return c10d::ErrorType::COMM_ERROR;
  }
}

void Backend::abort() {
  checkOwner();
  ReleaseGil gil;
  group_->abort("abort() was called on rank " + std::to_string(globalRank()));
  if (vendor_) vendor_->abort();
}

void Backend::shutdown() { end(std::nullopt); }

void Backend::leave(std::chrono::milliseconds patience) { end(patience); }

void Backend::end(std::optional<std::chrono::milliseconds> patience) {
  if (creator_ != processId()) return;
  ReleaseGil gil;
  std::chrono::milliseconds timeout;
  decltype(batches_) dropped;  // after the lock: what they hold may need the GIL to go
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(shutDown_, true)) return;
    dropped.swap(batches_);
    timeout = timeout_;
  }
  if (!group_) return;
  const bool sound = group_->status().ok();
  const Status status = patience ? group_->leave(std::min(*patience, timeout)) : group_->shutdown(timeout);
  // What failed before has been told to whoever waited for it.
  if (!status.ok())
    core::log(sound ? core::LogLevel::warn : core::LogLevel::info, globalRank(),
              "group ended after a failure: ", status.message());
  cleanStore(status.ok());
  if (!vendor_) return;
  if (!status.ok()) vendor_->abort();
  vendor_->close();
}

void Backend::cleanStore(bool orderly) {
  TorchStore store(config_.store);
  const auto patience = orderly ? std::chrono::seconds(2) : std::chrono::seconds(0);
  host::cleanup(store, rendezvousOptions(config_, {}), host::Clock::now() + patience);
}

void Backend::startCoalescing() {
  checkOwner();
  (void)takeBatch();  // one that the caller's own exception left behind
  std::lock_guard<std::mutex> lock(mutex_);
  batches_.try_emplace(std::this_thread::get_id());
}

WorkRef Backend::endCoalescing() {
  auto parts = takeBatch();
  TORCH_CHECK(parts,
              "kaitian: endCoalescing() without startCoalescing(), or after a call of the batch raised");
  if (parts->size() == 1) return parts->front();
  return c10::make_intrusive<BatchWork>(getRank(), std::move(*parts));
}

std::optional<std::vector<WorkRef>> Backend::takeBatch() {
  std::lock_guard<std::mutex> lock(mutex_);
  auto batch = batches_.extract(std::this_thread::get_id());
  if (batch.empty()) return std::nullopt;
  return std::move(batch.mapped());
}

void Backend::checkUsable() const {
  checkOwner();
  std::lock_guard<std::mutex> lock(mutex_);
  // An error inside a batch would leave torch's own record of it behind, so that later calls only went there
  // and seemed to succeed: a failed group's error comes with the batch's Work instead.
  if (batches_.empty() || batches_.find(std::this_thread::get_id()) == batches_.end())
    throwIfBad(group_->status());
  if (shutDown_) throwIfBad({Code::aborted, "kaitian: the process group has been destroyed"});
}

std::chrono::milliseconds Backend::timeoutOr(std::chrono::milliseconds timeout) const {
  if (timeout.count() > 0) return std::min(timeout, kLongest);
  std::lock_guard<std::mutex> lock(mutex_);
  return timeout_;
}

int Backend::globalRank() const { return host::globalRank(config_.globalRanks, getRank()); }

void Backend::checkRank(const char* name, const char* argument, std::int64_t rank) const {
  if (rank >= 0 && rank < getSize()) return;
  throwIfBad({Code::invalidArgument, std::string(name) + ": argument " + argument +
                                         ": expected a rank of the group in [0, " +
                                         std::to_string(getSize()) + "), found " + std::to_string(rank)});
}

}  // namespace kaitian::shim
