#pragma once
#include "cudasim_half.h"
