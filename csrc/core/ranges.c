/* Joins ranges of files into reads.
 *
 * A disk, and a server even more so, answers one request for two neighbours faster than two requests, as long as the bytes
 * between them are few. Each read begins with the next range, and takes in further ones while they lie close enough and the
 * unwanted bytes stay in proportion:
 *
 *     for each run of ranges that touch:
 *         if it lies closer than `gap` to the last read, and that would be at most `ratio` times its wanted bytes:
 *             extend the read
 *         else: begin another
 */
#include "core/internal.h"

uint64_t wm_join_ranges(uint32_t *files, uint64_t *starts, uint64_t *stops, uint64_t *sizes, uint64_t n, uint64_t gap,
                        double ratio) {
    uint64_t m = 0;
    for (uint64_t i = 0; i < n;) {
        uint32_t file = files[i];
        uint64_t start = starts[i], stop = stops[i];
        i++;
        if (stop <= start) continue;
        for (; i < n && files[i] == file && starts[i] <= stop; i++)
            if (stops[i] > stop) stop = stops[i];
        if (m > 0 && files[m - 1] == file && start - stops[m - 1] < gap) {
            uint64_t both = sizes[m - 1] + (stop - start);
            if ((double)(stop - starts[m - 1]) <= ratio * (double)both) {
                stops[m - 1] = stop;
                sizes[m - 1] = both;
                continue;
            }
        }
        files[m] = file;
        starts[m] = start;
        stops[m] = stop;
        sizes[m] = stop - start;
        m++;
    }
    return m;
}
