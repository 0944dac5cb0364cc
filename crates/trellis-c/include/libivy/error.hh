// Found under the name that libivy gave it; everything is in ivy.hh.
#pragma once
#include "../ivy.hh"
