#include "simulate/timeline.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

namespace kaitian::simulate {

int Timeline::addServer(std::string name) {
  servers_.push_back({std::move(name), 0, 0});
  return servers() - 1;
}

int Timeline::add(Task task) {
  tasks_.push_back(std::move(task));
  return static_cast<int>(tasks_.size()) - 1;
}

double Timeline::place(const Task& task, double ready) {
  double start = ready;
  for (const int server : task.servers) start = std::max(start, at(server).free);
  for (const int server : task.servers) {
    at(server).free = start + task.occupancy;
    at(server).busy += task.occupancy;
  }
  if (task.receiver < 0) return start + task.occupancy + task.latency;
  Server& receiver = at(task.receiver);
  receiver.free = std::max(start + task.latency, receiver.free) + task.occupancy;
  receiver.busy += task.occupancy;
  return receiver.free;
}

double Timeline::run() {
  std::vector<std::vector<std::size_t>> next(tasks_.size());
  std::vector<std::size_t> missing(tasks_.size());
  std::vector<double> ready(tasks_.size(), 0);
  using Event = std::pair<double, std::size_t>;  // (ready, task)
  std::priority_queue<Event, std::vector<Event>, std::greater<>> queue;
  for (std::size_t i = 0; i < tasks_.size(); ++i) {
    missing[i] = tasks_[i].after.size();
    for (const int before : tasks_[i].after) next[static_cast<std::size_t>(before)].push_back(i);
    if (missing[i] == 0) queue.emplace(0.0, i);
  }
  double end = 0;
  while (!queue.empty()) {
    const auto [time, task] = queue.top();
    queue.pop();
    const double done = place(tasks_[task], time);
    end = std::max(end, done);
    for (const std::size_t follower : next[task]) {
      ready[follower] = std::max(ready[follower], done);
      if (--missing[follower] == 0) queue.emplace(ready[follower], follower);
    }
  }
  return end;
}

}  // namespace kaitian::simulate
