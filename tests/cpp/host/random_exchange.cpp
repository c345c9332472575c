#include "host/random_exchange.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "kaitian/fold/fold.h"

namespace kaitian::host::test {
namespace {

/// A range of the vector with the ranks that give and take it.
struct Stretch {
  std::int64_t lo = 0, hi = 0;
  std::vector<bool> gives, takes;
};

std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

std::vector<Stretch> randomStretches(Random& random, int ranks, std::int64_t count, bool fold) {
  std::vector<std::int64_t> cuts{0, count};
  for (std::int64_t n = pick(random, 0, 8); n > 0; --n) cuts.push_back(pick(random, 0, count));
  std::sort(cuts.begin(), cuts.end());
  std::vector<Stretch> stretches;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    if (cuts[i] == cuts[i + 1]) continue;
    Stretch s{cuts[i], cuts[i + 1], std::vector<bool>(at(ranks), false), std::vector<bool>(at(ranks), false)};
    s.gives[at(static_cast<int>(pick(random, 0, ranks - 1)))] = true;
    const bool all = chance(random, 0.4);
    for (std::size_t r = 0; r < at(ranks); ++r) {
      if (fold && (all || chance(random, 0.5))) s.gives[r] = true;
      s.takes[r] = all || chance(random, 0.5);
    }
    stretches.push_back(std::move(s));
  }
  return stretches;
}

/// The ranges of one rank; neighbours become one range or stay two.
template <typename Range>
std::vector<Range> rangesOf(Random& random, const std::vector<Stretch>& stretches,
                            const std::vector<bool> Stretch::* who, std::size_t rank) {
  std::vector<Range> ranges;
  for (const Stretch& s : stretches) {
    if (!(s.*who)[rank]) continue;
    if (!ranges.empty() && ranges.back().hi == s.lo && chance(random, 0.5)) {
      ranges.back().hi = s.hi;
    } else {
      Range range;
      range.lo = s.lo;
      range.hi = s.hi;
      ranges.push_back(range);
    }
  }
  return ranges;
}

void fill(Random& random, std::vector<std::byte>& memory, std::size_t bytes, DType dtype, bool wild) {
  memory.resize(bytes);
  for (std::byte& b : memory) b = static_cast<std::byte>(random());
  if (wild || dtype != DType::f32) return;
  for (std::size_t i = 0; i + 4 <= bytes; i += 4) {
    const auto value = static_cast<float>(pick(random, -1000, 1000)) / 7.0F;
    std::memcpy(memory.data() + i, &value, 4);
  }
}

void makeMemory(Random& random, ExchangeCase& c, std::int64_t count, int ranks) {
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeOf(c.dtype);
  const bool wild = chance(random, 0.5);
  for (int r = 0; r < ranks; ++r) {
    ExchangeCase::Memory memory;
    memory.inPlace = chance(random, 0.5);
    memory.shift = chance(random, 0.3) ? static_cast<std::size_t>(pick(random, 1, 7)) : 0;
    fill(random, memory.gives, bytes + memory.shift, c.dtype, wild || memory.shift != 0);
    if (!memory.inPlace) fill(random, memory.takes, bytes + memory.shift, c.dtype, true);
    c.ranks.push_back(std::move(memory));
  }
  for (auto& memory : c.ranks) memory.expected = memory.taken();
}

/// Ranks in the order in which a fold takes them.
std::vector<int> foldOrder(const plan::Layout& layout) {
  std::vector<int> order;
  for (int h = 0; h < layout.hosts(); ++h) {
    for (const int r : layout.hostMembers(h)) order.push_back(r);
  }
  return order;
}

/// One element at a time, straight from the definition.
void expectResults(ExchangeCase& c, const std::vector<Stretch>& stretches, const plan::Layout& layout) {
  const std::size_t size = sizeOf(c.dtype);
  const std::vector<int> order = foldOrder(layout);
  for (const Stretch& s : stretches) {
    for (std::int64_t e = s.lo; e < s.hi; ++e) {
      std::vector<fold::Input> inputs;
      for (const int r : order) {
        if (!s.gives[at(r)]) continue;
        fold::Input input;
        input.data = c.ranks[at(r)].gives.data() + c.ranks[at(r)].shift + static_cast<std::size_t>(e) * size;
        input.host = layout.hostOf(r);
        if (!c.scales.empty()) input.scale = c.scales[at(r)];
        inputs.push_back(input);
      }
      std::byte result[16];
      fold::fold({c.dtype, c.plan->fold, layout.worldSize()}, inputs, result, 1);
      for (auto& memory : c.ranks) {
        const auto rank = static_cast<std::size_t>(&memory - c.ranks.data());
        if (s.takes[rank])
          std::memcpy(memory.expected.data() + memory.shift + static_cast<std::size_t>(e) * size, result,
                      size);
      }
    }
  }
}

ExchangeCase makeCase(Random& random, const plan::Layout& layout, const std::vector<Stretch>& stretches,
                      std::int64_t count, DType dtype, ReduceOp op) {
  ExchangeCase c;
  c.plan = std::make_shared<plan::Plan>();
  c.plan->hi = count;
  c.plan->fold = op;
  c.dtype = dtype;
  const int ranks = layout.worldSize();
  for (int r = 0; r < ranks; ++r) {
    c.plan->gives.push_back(rangesOf<plan::Give>(random, stretches, &Stretch::gives, at(r)));
    c.plan->takes.push_back(rangesOf<plan::Take>(random, stretches, &Stretch::takes, at(r)));
  }
  if (op == ReduceOp::premulSum) {
    for (int r = 0; r < ranks; ++r) c.scales.push_back({0.5 + r, 0.25, 2 + r});
  }
  makeMemory(random, c, count, ranks);
  expectResults(c, stretches, layout);
  return c;
}

}  // namespace

std::uint64_t newSeed() {
  const char* wished = std::getenv("KAITIAN_TEST_SEED");
  const std::uint64_t seed = wished != nullptr ? std::strtoull(wished, nullptr, 10) : std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

std::int64_t pick(Random& random, std::int64_t least, std::int64_t most) {
  return std::uniform_int_distribution<std::int64_t>(least, most)(random);
}

bool chance(Random& random, double probability) { return std::bernoulli_distribution(probability)(random); }

ExchangeRequest ExchangeCase::request(int rank, std::uint64_t sequence, std::uint32_t chunk) {
  ExchangeRequest request;
  request.sequence = sequence;
  request.chunk = chunk;
  request.plan = plan;
  request.dtype = dtype;
  request.scales = scales;
  Memory& memory = ranks[at(rank)];
  const auto size = static_cast<std::int64_t>(sizeOf(dtype));
  for (const plan::Give& g : plan->gives[at(rank)]) {
    request.gives.push_back(memory.gives.data() + memory.shift + g.lo * size);
  }
  for (const plan::Take& t : plan->takes[at(rank)]) {
    request.takes.push_back(memory.taken().data() + memory.shift + t.lo * size);
  }
  return request;
}

std::string ExchangeCase::describe() const {
  std::ostringstream text;
  text << toString(dtype) << ' ' << toString(plan->fold) << ' ' << plan::describe(*plan);
  return text.str();
}

ExchangeCase makeRandomExchange(Random& random, const plan::Layout& layout, std::int64_t most) {
  std::int64_t count = pick(random, 0, most);
  if (chance(random, 0.1)) count = 0;
  if (chance(random, 0.1)) count = 1;
  auto dtype = static_cast<DType>(pick(random, 0, kDTypeCount - 1));
  auto op = static_cast<ReduceOp>(pick(random, 0, kReduceOpCount - 1));
  if (chance(random, 0.3)) op = ReduceOp::none;
  while (!isDefined(op, dtype)) dtype = static_cast<DType>(pick(random, 0, kDTypeCount - 1));
  const auto stretches = randomStretches(random, layout.worldSize(), count, op != ReduceOp::none);
  return makeCase(random, layout, stretches, count, dtype, op);
}

ExchangeCase makeAllReduce(Random& random, const plan::Layout& layout, std::int64_t count, DType dtype,
                           ReduceOp op) {
  std::vector<Stretch> stretches;
  const std::vector<bool> all(at(layout.worldSize()), true);
  if (count > 0) stretches.push_back({0, count, all, all});
  return makeCase(random, layout, stretches, count, dtype, op);
}

}  // namespace kaitian::host::test
