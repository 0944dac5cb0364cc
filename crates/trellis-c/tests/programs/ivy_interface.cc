// Every name of libivy's interface, used the ways programs use it; one node, so it needs no peer.
//
//     ivy_interface <libivy JSON>
#include "error.hh"
#include "libivy.hh"
#include "libivy/libivy.hh"

using namespace libivy;

static bool refuses(std::function<void()> action, std::string word) {
    try {
        action();
    } catch (const std::runtime_error& error) {
        if (std::string(error.what()).find(word) != std::string::npos) return true;
        std::cerr << "another sentence was expected: " << error.what() << std::endl;
    }
    return false;
}

static mres_t fails() { return err_t("no can do"); }

static void values_and_text() {
    IVY_ASSERT(is_err(fails()) && !is_err(mres_t()), "mres_t");
    IVY_ASSERT(is_err(res_t<int>{0, "broken"}) && unwrap(res_t<int>{7, {}}) == 7, "res_t");
    IVY_ASSERT(refuses([] { unwrap(res_t<int>{0, "broken"}); }, "broken"), "unwrap throws the error");
    IVY_ASSERT(refuses([] { ERROR("stop here"); }, "stop here"), "ERROR throws");
    IVY_ASSERT(pg_align(8195ul) == 8192, "pg_align of a number");
    IVY_ASSERT(pg_align(reinterpret_cast<void_ptr>(0x5001)) == (void_ptr)0x5000, "pg_align of a pointer");
    const char bytes[] = {0x00, 0x7f, static_cast<char>(0xff)};
    IVY_ASSERT(to_hex(bytes, 3) == "007FFF", "to_hex");
    std::unique_ptr<char[]> back(from_hex("007FfF"));
    IVY_ASSERT(std::memcmp(back.get(), bytes, 3) == 0, "from_hex");
    IVY_ASSERT(RD == 0 && WR == 1 && RW == 2 && NONE == 3 && IvyAccessType::RD == 0, "IvyAccessType");
    errno = ENOENT;
    IVY_ASSERT(refuses([] { IVY_PERROR("open"); }, "No such file"), "IVY_PERROR");
    DBG << "plain" << std::endl;
    DBGF;
    DBGW << "careful" << std::endl;
    DBGE << "wrong" << std::endl;
    FUNC_DUMP;
}

int main(int, char* argv[]) {
    values_and_text();
    IVY_ASSERT(refuses([] { Ivy("no/such/file.json", 0); }, "no/such/file.json"), "a missing file is refused");
    IVY_ASSERT(refuses([&] { Ivy(argv[1], 99); }, "99"), "a node that the file does not list is refused");
    {
        Ivy ivy(argv[1], 0);
        IVY_ASSERT(refuses([&] { Ivy(argv[1], 0); }, "already exists"), "a second Ivy is refused");
        IVY_ASSERT(unwrap(ivy.is_manager()) && unwrap(ivy.ca_va()), "the only node is the manager");
        IVY_ASSERT(!ivy.drop_shm().has_value(), "dropping before getting is nothing");
    }
    Ivy ivy(argv[1], 0);
    auto [shm, err] = ivy.get_shm();
    IVY_ASSERT(!err.has_value(), err.value());
    res_t<void_ptr> plain = ivy.get_shm();
    IVY_ASSERT(plain.first == shm && unwrap(ivy.get_shm()) == shm && !is_err(ivy.get_shm()), "one region");
    IVY_ASSERT(plain.first == reinterpret_cast<void_ptr>(0x10000000000), "at the configured address");
    IVY_ASSERT(reinterpret_cast<uint64_t*>(*shm) == reinterpret_cast<uint64_t*>(shm), "both spellings are one address");
    void_ptr by_tie;
    std::tie(by_tie, std::ignore) = ivy.get_shm();
    std::memset(shm, 0xA5, Ivy::PAGE_SZ);
    IVY_ASSERT(by_tie == shm && static_cast<unsigned char*>(by_tie)[4095] == 0xA5, "memory works");
    ivy.dump_shm_page(0);
    ivy.dump_shm_page(1ul << 40);
    int elsewhere;
    IVY_ASSERT(ivy.drop_shm(&elsewhere).has_value(), "another address is not a region");
    IVY_ASSERT(!ivy.drop_shm(shm).has_value() && is_err(ivy.get_shm()), "dropped is dropped");
    std::cout << "interface complete" << std::endl;
}
