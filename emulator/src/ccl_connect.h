// How the members of a vendor communicator find each other: one key per rank in the store.
#pragma once

#include <chrono>
#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "channel.h"

namespace kaitian::emulator {

struct Library;

/// `ranks`: global rank of each member, for messages; may be empty.
std::shared_ptr<Channel> connectMembers(c10d::Store& store, int rank, int size, const std::vector<int>& ranks,
                                        std::chrono::milliseconds timeout, const Library& library);

}  // namespace kaitian::emulator
