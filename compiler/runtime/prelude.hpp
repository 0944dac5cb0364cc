// What C++ code begins with in modes full and heap: `trellis c++` includes it before anything else.
//
// Promises: templates that libstdc++.so has instantiated (std::string above all) are instantiated by the program again,
// where they are translated. It must never declare anything.
#if defined(__cplusplus)
#if __has_include(<bits/c++config.h>)
#include <bits/c++config.h>
#undef _GLIBCXX_EXTERN_TEMPLATE
#define _GLIBCXX_EXTERN_TEMPLATE 0
#endif
#endif
