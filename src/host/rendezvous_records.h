// The records of the rendezvous and their keys in the store. Parsers take any input: a value or
// Code::invalidArgument.
#pragma once

#include <string>

#include "kaitian/host/rendezvous.h"

namespace kaitian::host {

inline constexpr std::size_t kTextLimit = 256;
inline constexpr std::size_t kSecretBytes = 32;

std::string identityKey(int rank);
std::string resultKey(int rank);
inline constexpr const char* kDecisionKey = "kaitian/decision";
inline constexpr const char* kFinalKey = "kaitian/final";

/// Code::invalidArgument if a text of the identity is longer than a record holds.
Status checkSizes(const Identity& identity);

/// A status of any code. Messages longer than 8 KiB are cut.
std::string serializeStatus(const Status& status);
/// The outer status tells whether the record was well-formed.
Status parseStatus(const std::string& text, Status& parsed);

/// What rank 0 decided: the ranks and the secret, or a refusal.
std::string serializeDecision(const Result<World>& decision);
/// The outer status tells whether the record was well-formed and made for `worldSize` ranks.
Status parseDecision(const std::string& text, int worldSize, Result<World>& parsed);

}  // namespace kaitian::host
