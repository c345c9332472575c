#include "plan/random_case.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <numeric>
#include <random>
#include <set>

namespace kaitian::plan::test {
namespace {

class Generator {
 public:
  explicit Generator(std::uint64_t seed) : random_(seed) {}

  Case make() {
    layout();
    kind();
    counts();
    cut();
    for (int rank = 0; rank < case_.layout.worldSize(); ++rank) {
      case_.inPlace.push_back(false);
      case_.scales.push_back(
          {1, 0, pick<std::int64_t>({-5, -3, -2, 2, 3, 4, 5})});  // 0 and 1 would hide faults
    }
    inPlace();
    case_.seed = random_();
    return std::move(case_);
  }

 private:
  int below(int limit) { return static_cast<int>(random_() % static_cast<std::uint64_t>(limit)); }
  bool chance(int percent) { return below(100) < percent; }
  template <typename T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[below(static_cast<int>(values.size()))];
  }

  void layout() {
    const int islands = 1 + below(5);
    std::vector<int> sizes;
    for (int island = 0; island < islands; ++island) {
      sizes.push_back(1 + below(6));
      case_.islands.insert(case_.islands.end(), static_cast<std::size_t>(sizes.back()), island);
    }
    if (chance(60)) {
      std::shuffle(case_.islands.begin(), case_.islands.end(), random_);
    }
    const int hosts = 1 + below(4);
    const int mode = below(3);
    std::vector<int> hostOfIsland;
    for (int island = 0; island < islands; ++island) {
      hostOfIsland.push_back(below(hosts));
    }
    for (const int island : case_.islands) {
      case_.hosts.push_back(mode == 0 ? hostOfIsland[static_cast<std::size_t>(island)] : below(hosts));
    }
    if (mode == 1) {
      std::sort(case_.hosts.begin(), case_.hosts.end());
    }
    case_.layout = Layout::make(case_.hosts, case_.islands);
  }

  void kind() {
    Collective& c = case_.collective;
    c.kind = pick({Kind::allReduce,     Kind::allReduce,     Kind::allReduce,     Kind::reduce,
                   Kind::reduce,        Kind::broadcast,     Kind::broadcast,     Kind::allGather,
                   Kind::allGather,     Kind::allGather,     Kind::allGather,     Kind::reduceScatter,
                   Kind::reduceScatter, Kind::reduceScatter, Kind::reduceScatter, Kind::gather,
                   Kind::scatter,       Kind::allToAll,      Kind::allToAll,      Kind::allToAll});
    if (chance(2)) {
      c.kind = Kind::barrier;
    }
    c.dtype = DType::i64;
    if (isFolding(c.kind)) {
      c.op = static_cast<ReduceOp>(1 + below(kReduceOpCount - 1));
    }
    c.root = below(case_.layout.worldSize());
    c.lists = chance(40);
  }

  std::size_t entries() {
    const auto world = static_cast<std::size_t>(case_.layout.worldSize());
    const std::size_t groups = chance(70) ? 1 : 1 + static_cast<std::size_t>(below(3));
    switch (case_.collective.kind) {
      case Kind::allReduce:
      case Kind::reduce:
      case Kind::broadcast:
        return groups;
      case Kind::allGather:
      case Kind::reduceScatter:
        return groups * world;
      case Kind::gather:
      case Kind::scatter:
        return world;
      case Kind::allToAll:
        return world * world;
      case Kind::barrier:
        break;
    }
    return 0;
  }

  /// Of whole tensors for in-place kinds, else of blocks, which are many.
  std::int64_t count(bool tensor) {
    const std::int64_t lcm = case_.layout.islandLcm();
    const std::int64_t limit = tensor ? 400 : 60;
    if (chance(35) && lcm <= limit) {
      return lcm * (1 + below(static_cast<int>(limit / lcm)));
    }
    return pick<std::int64_t>({1, 2, 3, 5, 7, below(12), tensor ? 10 + below(88) : below(20)});
  }

  void counts() {
    const std::size_t size = entries();
    std::vector<std::int64_t>& counts = case_.collective.counts;
    if (chance(14)) {
      counts.assign(size, 0);
      return;
    }
    const Kind kind = case_.collective.kind;
    const bool tensor = kind == Kind::allReduce || kind == Kind::reduce || kind == Kind::broadcast;
    if (kind == Kind::allToAll) {
      counts.assign(size, pick<std::int64_t>({1, 2, 3, 7}));
    } else {
      counts.assign(size, count(tensor));
    }
    if (chance(45)) {  // unequal, with empty blocks
      for (std::int64_t& entry : counts) {
        entry = kind == Kind::allToAll ? pick<std::int64_t>({0, 0, 1, 2, 3}) : chance(25) ? 0 : count(tensor);
      }
    }
  }

  void cut() {
    case_.cut.chunkElements = pick<std::int64_t>({0, 0, 1, 8, 16, 64, 200, 1000});
    case_.cut.alignment = pick<std::int64_t>({1, 1, 1, 2, 4});
    const int mode = below(4);
    for (int island = 0; island < case_.layout.islands(); ++island) {
      const bool vendor = mode == 1 || mode == 2 || (mode == 3 && chance(50));
      case_.cut.strategy.push_back(vendor ? Strategy::vendor : Strategy::relay);
    }
  }

  void inPlace() {
    const Kind kind = case_.collective.kind;
    if ((kind != Kind::allGather && kind != Kind::reduceScatter) || chance(40)) {
      return;
    }
    const bool all = chance(50);
    for (std::size_t rank = 0; rank < case_.inPlace.size(); ++rank) {
      case_.inPlace[rank] = all || chance(50);
    }
  }

  std::mt19937_64 random_;
  Case case_;
};

std::int64_t total(const Case& c) {
  return std::accumulate(c.collective.counts.begin(), c.collective.counts.end(), std::int64_t{0});
}

bool anyIsland(const Case& c, bool (*holds)(const Case&, const std::vector<int>&)) {
  for (int island = 0; island < c.layout.islands(); ++island) {
    if (holds(c, c.layout.islandMembers(island))) {
      return true;
    }
  }
  return false;
}

bool hasUnequalIslands(const Case& c) {
  return anyIsland(c, [](const Case& k, const std::vector<int>& members) {
    return members.size() != k.layout.islandMembers(0).size();
  });
}

bool isInterleaved(const Case& c) {
  return anyIsland(c, [](const Case&, const std::vector<int>& members) {
    const auto [first, last] = std::minmax_element(members.begin(), members.end());
    return *last - *first + 1 != static_cast<int>(members.size());
  });
}

bool isAcrossHosts(const Case& c) {
  return anyIsland(c, [](const Case& k, const std::vector<int>& members) {
    return k.layout.hostOf(members.front()) != k.layout.hostOf(members.back());
  });
}

bool isBelowWorld(const Case& c) {
  const auto& counts = c.collective.counts;
  return total(c) != 0 && *std::max_element(counts.begin(), counts.end()) < c.layout.worldSize();
}

bool isIndivisible(const Case& c) {
  const std::int64_t length = total(c);
  for (int island = 0; island < c.layout.islands(); ++island) {
    if (length % static_cast<std::int64_t>(c.layout.islandMembers(island).size()) != 0) {
      return true;
    }
  }
  return false;
}

template <typename T>
std::string join(const std::vector<T>& values) {
  std::string text;
  for (const auto& value : values) {
    text += (text.empty() ? "" : ",") + std::to_string(value);
  }
  return text;
}

}  // namespace

Case randomCase(std::uint64_t seed, std::uint64_t number) {
  std::seed_seq sequence{seed & 0xffffffffU, seed >> 32, number & 0xffffffffU, number >> 32};
  std::mt19937_64 random(sequence);
  return Generator(random()).make();
}

std::uint64_t seedOfRun() {
  if (const char* const text = std::getenv("KAITIAN_SEED")) {
    return std::strtoull(text, nullptr, 0);
  }
  return static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
}

std::string describe(const Case& c) {
  std::vector<int> strategy;
  for (const Strategy s : c.cut.strategy) {
    strategy.push_back(s == Strategy::vendor ? 1 : 0);
  }
  std::vector<int> inPlace(c.inPlace.begin(), c.inPlace.end());
  return std::string(toString(c.collective.kind)) + " " + toString(c.collective.op) + " root " +
         std::to_string(c.collective.root) + (c.collective.lists ? " lists" : "") + " counts " +
         join(c.collective.counts) + "\nhosts " + join(c.hosts) + " islands " + join(c.islands) +
         " in place " + join(inPlace) + "\nchunk " + std::to_string(c.cut.chunkElements) + " alignment " +
         std::to_string(c.cut.alignment) + " vendor " + join(strategy);
}

const std::vector<Trait>& traits() {
  static const std::vector<Trait> all = {
      {">= 3 islands", [](const Case& c) { return c.layout.islands() >= 3; }},
      {"island of one",
       [](const Case& c) {
         return anyIsland(c,
                          [](const Case&, const std::vector<int>& members) { return members.size() == 1; });
       }},
      {"unequal islands", hasUnequalIslands},
      {"interleaved ranks", isInterleaved},
      {"island across hosts", isAcrossHosts},
      {"count 0", [](const Case& c) { return c.collective.kind != Kind::barrier && total(c) == 0; }},
      {"count < W", isBelowWorld},
      {"indivisible count", isIndivisible},
      {"in place",
       [](const Case& c) { return std::find(c.inPlace.begin(), c.inPlace.end(), true) != c.inPlace.end(); }},
  };
  return all;
}

}  // namespace kaitian::plan::test
