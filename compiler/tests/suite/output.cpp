// std::cout with what programs usually print.
#include <iostream>
#include <string>

int main() {
    std::string *name = new std::string("a name on the heap that is not small");
    std::cout << "number " << 42 << ' ' << 2.5 << ' ' << true << ' ' << 'c' << ' ' << 5000000000L << ' ' << 7u << '\n';
    std::cout << *name << " " << name->c_str() << std::endl;
    std::cerr << "";
    delete name;
}
