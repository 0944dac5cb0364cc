// String streams: libstdc++.so writes their text itself, so they are refused in words.
#include <cstdio>
#include <sstream>

int main() {
    std::ostringstream *out = new std::ostringstream;
    *out << "a number " << 42 << " and enough text to need the heap";
    std::istringstream in(out->str());
    std::string word;
    in >> word;
    std::printf("%s %s\n", out->str().c_str(), word.c_str());
    delete out;
}
