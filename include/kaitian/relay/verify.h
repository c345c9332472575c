// Tries what a vendor library claims, on a few elements, when its first communicator is made: libraries have
// been seen that answer an unsupported reduction with another one, or compute a wide type in a narrower one.
#pragma once

#include "kaitian/core/status.h"
#include "kaitian/relay/device.h"

namespace kaitian::relay {

/// What `library` really can do: its claims less every reduction or movement that gives an error or a wrong
/// value. A collective of the island: every member calls it, member `index` of `members`, on its launch
/// thread; may block. Members may see different results (an error on one only): the caller takes what all of
/// them found. Errors: the device's own copies fail, or the library leaves a communicator that no longer
/// answers.
Result<Capabilities> verify(VendorLibrary& library, Device& device, int index, int members);

}  // namespace kaitian::relay
